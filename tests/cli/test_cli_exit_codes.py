"""One test a row: what the process says to a shell script, and the two lines a person reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import jsonschema
import pytest

from oomdoctor.errors import ExitCode, OomDoctorError, machine_error, model_error, usage_error
from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report

# A process whose survey is replaced by the code in {}; `request`, `folder` and hooks are there.
SURVEY = """
import sys, time
from oomdoctor.cli.main import run
from oomdoctor.commands.probe import run_survey as survey
def fake(request, folder, *, wait, on_event, stop):
    print("started", file=sys.stderr, flush=True)
    {}
survey.run_survey = fake
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ExitCode.OK, "ok"),
        (ExitCode.NO, "no"),
        (ExitCode.INCONCLUSIVE, "partial"),
        (ExitCode.INTERRUPTED, "interrupted"),
        (ExitCode.TERMINATED, "interrupted"),
    ],
)
def test_a_report_ends_with_its_own_code(cli, survey, code, status):
    survey.answer = replace(survey.answer, exit_code=int(code), status=status)
    ended = cli("probe", "m", "--json", "--quiet")
    assert ended.code == code
    assert json.loads(ended.out)["exit_code"] == code
    assert ended.err == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (usage_error("bad_rung", "the configuration is wrong", "try this"), 2),
        (model_error("gated", "the model is gated", "log in"), 4),
        (machine_error("no_gpu", "there is no GPU", "try the CPU"), 5),
        (OomDoctorError("internal", "a fault"), 1),
    ],
)
def test_an_error_is_two_lines_and_its_code(cli, survey, error, code):
    survey.answer = error
    ended = cli("probe", "m", "--quiet")
    assert ended.code == code
    assert ended.out == ""
    hint = f"hint:  {error.hint}\n" if error.hint else ""
    assert ended.err == f"error: {error.message}\n{hint}"


def test_an_error_of_several_lines_is_aligned(cli, survey):
    survey.answer = usage_error("bad_recipe", "first\nsecond", "do\nthat")
    ended = cli("probe", "m", "--quiet")
    assert ended.err == "error: first\n       second\nhint:  do\n       that\n"


def test_an_error_cannot_move_the_cursor(cli, survey):
    survey.answer = model_error("missing", "no model \x1b[2Jx")
    assert cli("probe", "m", "--quiet").err == "error: no model \\x1b[2Jx\n"


def test_an_unexpected_error_is_one_line_and_code_1(cli, survey):
    survey.answer = ValueError("of all things\nmore")
    ended = cli("probe", "m", "--quiet")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "error: internal error: ValueError: of all things",
        "hint:  run it again with OOMDOCTOR_DEBUG=1 and report the traceback",
    ]


def test_the_traceback_is_there_when_asked_for(cli, survey, monkeypatch):
    monkeypatch.setenv("OOMDOCTOR_DEBUG", "1")
    survey.answer = ValueError("of all things")
    err = cli("probe", "m", "--quiet").err
    assert "Traceback (most recent call last)" in err
    assert "error: internal error: ValueError: of all things" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("probe", "m", "--no-such-option"),
        ("no-such-command",),
        ("probe", "m", "--seq-len"),
        ("probe", "a", "b"),
        ("recipes", "copy", "default"),
        ("recipes", "copy"),
        ("recipes", "show"),
        ("recipes", "check"),
    ],
    ids=" ".join,
)
def test_a_line_that_cannot_be_parsed_is_code_2_in_our_words(cli, arguments):
    ended = cli(*arguments)
    assert (ended.code, ended.out) == (2, "")
    lines = [line for line in ended.err.splitlines() if not line.startswith("oomdoctor ")]
    assert lines[0].startswith("error: ")
    assert lines[-1].startswith("hint:  run `oomdoctor")
    assert lines[-1].endswith("--help`")


ENVELOPES = {
    "typer": ("probe", "m", "--json", "--no-such-option"),
    "usage": ("probe", "--json"),
    "option": ("probe", "m", "--json", "--vram", "lots"),
    "model": ("probe", "no/such", "--source", "catalogue", "--json"),
    "format": ("probe", "m", "--format", "json", "--seed", "x"),
    "format=": ("probe", "m", "--format=json", "--seed", "x"),
    "run": ("show", "no-such-run", "--json"),
    "gpu": ("gpus", "no such card", "--json"),
    "command": ("nothing", "--json"),
}


@pytest.mark.parametrize("name", ENVELOPES)
def test_an_error_in_json_mode_is_one_valid_envelope(cli, name):
    ended = cli(*ENVELOPES[name])
    document = json.loads(ended.out)
    jsonschema.validate(document, _schema())
    report = loads(Report, ended.out)
    assert report.status == ("no" if name == "gpu" else "error")
    assert report.exit_code == ended.code != 0
    assert len(report.errors) == 1
    assert ended.err.splitlines()[-1].startswith(("error: ", "hint:  "))
    known = ("probe", "show", "gpus")
    assert report.command == (ENVELOPES[name][0] if ENVELOPES[name][0] in known else "oomdoctor")


def test_json_after_a_double_dash_is_a_word(cli):
    assert cli("probe", "--quiet", "--", "--json", "x").out == ""


def test_ctrl_c_before_the_survey_is_130(cli, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oomdoctor.system.store.run_folders.create", interrupted)
    ended = cli("probe", "m", "--json")
    assert ended.code == 130
    assert json.loads(ended.out)["status"] == "interrupted"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_asks_the_survey_to_stop(survey_child, number, code):
    body = "while stop() is None: time.sleep(0.01)\n    raise SystemExit(int(stop()))"
    process = survey_child(body)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "stopping: the results so far will be printed" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_two_signals_end_a_survey_that_does_not_listen(survey_child, number, code):
    process = survey_child("time.sleep(60)")
    process.send_signal(number)
    assert "stopping" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("models",), b""),
        (("gpus", "--json"), b""),
        (("probe", "--help"), b""),
        (("gpus", "no such card", "--json"), b"error: no known GPU matches"),
    ],
)
def test_a_closed_pipe_is_1_and_quiet(arguments, told):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "oomdoctor", *arguments],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(told)
    assert bool(done.stderr) == bool(told)
    assert b"Exception" not in done.stderr


@pytest.fixture
def survey_child():
    """Start a process with a survey of our own, and wait until it is in the survey."""
    running = []

    def start(body: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SURVEY.format(body), "probe", "m", "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stderr.readline() == "started\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def _schema() -> dict:
    from importlib import resources

    return json.loads(
        resources.files("oomdoctor").joinpath("data", "report.schema.json").read_text()
    )
