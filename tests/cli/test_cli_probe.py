"""From what is typed at `probe` to the request, and from the report to the streams."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from calibration_make import times

from oomdoctor.analysis.command_line import command_line
from oomdoctor.errors import model_error
from oomdoctor.records.job.dataset import TrainingRequest
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.job.model import ModelRef
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.store import run_folders, run_list
from oomdoctor.system.store.run_list import stored_runs


def asked(cli, survey, *arguments):
    """The request that a command line makes."""
    ended = cli("probe", "m", "--quiet", *arguments)
    assert ended.code == survey.answer.exit_code, ended.err
    return survey.request


def test_on_the_cpu_the_defaults_are_what_it_can_do_in_minutes(cli, survey):
    request = asked(cli, survey)
    assert (request.sequence_length, request.effective_batch_size) == (64, 4)
    assert {rung.config.sequence_length for rung in request.recipe.rungs} == {64}
    request = asked(cli, survey, "--device", "cpu", "--seq-len", "2048", "--effective-batch", "16")
    assert (request.sequence_length, request.effective_batch_size) == (2048, 16)


def test_an_emulated_card_is_named_as_published_and_asks_no_driver(cli, survey, monkeypatch):
    def driver():
        raise AssertionError("the driver was asked")

    monkeypatch.setattr("oomdoctor.cli.probe_request.list_gpus", driver)
    request = asked(cli, survey, "--emulate", "4090")
    assert (request.emulate, request.device) == ("NVIDIA GeForce RTX 4090", "cuda")
    assert request.sequence_length == 2048
    assert asked(cli, survey, "--emulate", "2 x 24 GiB").emulate == "2x24 GiB"
    assert asked(cli, survey, "--emulate", "H100").emulate == "H100"  # the smallest, with a warning


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--emulate", "RTX 4091"], "did you mean NVIDIA GeForce RTX 4090"),
        (["--emulate", "99xL4"], "from 1 to 64"),
        (["--emulate", "AMD Instinct MI300X"], "not an NVIDIA card"),
        (["--emulate", "L4", "--device", "cpu"], "leave out --device"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_emulated_is_a_fault(cli, survey, arguments, words):
    ended = cli("probe", "m", "--quiet", *arguments)
    assert (ended.code, survey.request) == (2, None)
    assert f"--emulate: {words}" in ended.err or words in ended.err


def test_the_defaults(cli, survey, monkeypatch):
    card = Gpu(0, "GPU-1", "NVIDIA H200", 150 * 10**9, 149 * 10**9, "9.0", ())
    monkeypatch.setattr("oomdoctor.cli.probe_request.list_gpus", lambda: (card,))
    request = asked(cli, survey)
    assert request.model == ModelRef("m")
    assert request.recipe.name == "default"
    assert len(request.recipe.rungs) >= 10
    assert {rung.config.sequence_length for rung in request.recipe.rungs} == {2048}
    assert {rung.config.effective_batch_size for rung in request.recipe.rungs} == {16}
    assert replace(request, model=None, recipe=None) == replace(
        request,
        model=None,
        recipe=None,
        device="auto",
        vram_bytes=None,
        headroom=0.02,
        sequence_length=2048,
        effective_batch_size=16,
        micro_batch_size=None,
        weights="synthetic",
        evaluate=False,
        eval_batch_size=8,
        rank_by="throughput",
        tokens=10**6,
        time_limit_s=None,
        rung_limit_s=600.0,
        python=sys.executable,
        seed=0,
    )
    assert survey.wait is False


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--device", "cuda:1"], "device", "cuda:1"),
        (["--vram", "24GiB"], "vram_bytes", 24 * 1024**3),
        (["--vram", "24"], "vram_bytes", 24 * 1024**3),
        (["--vram", "24GB"], "vram_bytes", 24 * 10**9),
        (["--headroom", "5%"], "headroom", 0.05),
        (["--headroom", "0.1"], "headroom", 0.1),
        (["--headroom", "0"], "headroom", 0.0),
        (["--seq-len", "4096"], "sequence_length", 4096),
        (["--effective-batch", "32"], "effective_batch_size", 32),
        (["--micro-batch", "4"], "micro_batch_size", 4),
        (["--weights", "pretrained"], "weights", "pretrained"),
        (["--eval"], "evaluate", True),
        (["--eval-batch", "2"], "eval_batch_size", 2),
        (["--rank-by", "micro-batch"], "rank_by", "micro-batch"),
        (["--tokens", "2.5B"], "tokens", 2_500_000_000),
        (["--rows", "52k"], "training", TrainingRequest(52_000, 1.0)),
        (["--rows", "1", "--epochs", "0.5"], "training", TrainingRequest(1, 0.5)),
        (["--time-limit", "1h30m"], "time_limit_s", 5400.0),
        (["--rung-timeout", "90"], "rung_limit_s", 90.0),
        (["--seed", "7"], "seed", 7),
        (["--seed", str(2**63 - 1)], "seed", 2**63 - 1),
        (["--task", "masked-lm"], "model", ModelRef("m", task="masked-lm")),
        (["--revision", "v1"], "model", ModelRef("m", revision="v1")),
        (["--source", "catalogue"], "model", ModelRef("m", source="catalogue")),
        (["--trust-remote-code"], "model", ModelRef("m", trust_remote_code=True)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_option_reaches_the_request(cli, survey, arguments, field, value):
    assert getattr(asked(cli, survey, *arguments), field) == value


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("https://huggingface.co/Org/Name-1.5_b", "Org/Name-1.5_b"),
        ("https://huggingface.co/Org/Name/tree/main?x=1", "Org/Name"),
        ("http://www.hf.co/gpt2/", "gpt2"),
        ("Org/Name/", "Org/Name"),
        ("https://huggingface.co/datasets/Org/Name", "https://huggingface.co/datasets/Org/Name"),
        ("https://other.example/Org/Name", "https://other.example/Org/Name"),
        ("./Org/Name/", "./Org/Name/"),
        ("Name/", "Name/"),
    ],
)
def test_a_page_of_the_hub_is_its_id(cli, survey, typed, name):
    cli("probe", typed)
    assert survey.request.model.name == name
    assert cli("probe", typed, "--resume", "latest").code == survey.answer.exit_code


def test_a_folder_with_a_slash_at_its_end_is_the_folder(cli, survey, tmp_path, monkeypatch):
    (tmp_path / "Org" / "Name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    cli("probe", "Org/Name/")
    assert survey.request.model.name == str((tmp_path / "Org" / "Name").resolve())


def test_wait_reaches_the_survey(cli, survey):
    asked(cli, survey, "--wait")
    assert survey.wait is True


def test_sizes_reach_every_rung(cli, survey):
    request = asked(
        cli, survey, "--seq-len", "64", "--effective-batch", "4", "--micro-batch", "2",
        "--rung", "method=lora,lora_rank=64",
    )  # fmt: skip
    sizes = {
        (c.sequence_length, c.effective_batch_size, c.micro_batch_size)
        for c in (rung.config for rung in request.recipe.rungs)
    }
    assert sizes == {(64, 4, 2)}


def test_rungs_are_added_once(cli, survey):
    request = asked(
        cli, survey, "--recipe", "none", "--rung", "method=lora,lora_rank=64",
        "--rung", "method=lora,lora_rank=64", "--rung", "method=full",
    )  # fmt: skip
    assert [rung.config.lora_rank for rung in request.recipe.rungs] == [64, 16]


def test_a_rung_by_name_leaves_out_the_others_of_the_recipe(cli, survey):
    request = asked(cli, survey, "--rung", "lora-r16+ckpt", "--rung", "method=lora,lora_rank=64")
    assert [rung.label for rung in request.recipe.rungs] == ["lora-r16+ckpt", "lora-r64"]
    assert "--rung lora-r16+ckpt --rung method=lora,lora_rank=64" in command_line(request)


def test_a_rung_by_a_wrong_name_is_an_error_with_names_that_exist(cli, survey):
    ended = cli("probe", "m", "--rung", "lora-r16-ckpt")
    assert ended.code == 2
    assert "the recipe default has no configuration 'lora-r16-ckpt'" in ended.err
    assert "lora-r16+ckpt" in ended.err


def test_a_typed_rung_replaces_the_same_rung_of_the_recipe(cli, survey):
    before = asked(cli, survey).recipe.rungs
    config = before[3].config
    text = f"method={config.method},weights_dtype={config.weights_dtype},micro_batch_size=4"
    after = asked(cli, survey, "--rung", text).recipe.rungs
    changed = [(a.config, b.config) for a, b in zip(before, after, strict=True) if a != b]
    assert [(a.rung_key() == b.rung_key(), b.micro_batch_size) for a, b in changed] == [(True, 4)]


def test_two_rungs_that_differ_in_the_micro_batch_only_are_refused(cli, survey):
    rungs = ("--rung", "method=full,micro_batch_size=1", "--rung", "method=full,micro_batch_size=2")
    ended = cli("probe", "m", "--recipe", "none", *rungs)
    assert (ended.code, survey.request) == (2, None)
    assert "differ only in their micro-batch size (full-bf16)" in ended.err


def test_rungs_that_differ_are_named_by_it_and_a_label_of_two_gets_a_number(cli, survey):
    texts = (
        "method=lora,lora_alpha=8",
        "method=lora,lora_alpha=16",
        "method=full,label=mine",
        "method=qlora,label=mine",
    )
    rungs = [word for text in texts for word in ("--rung", text)]
    request = asked(cli, survey, "--recipe", "none", *rungs)
    labels = [rung.label for rung in request.recipe.rungs]
    assert labels == ["lora-r16+alpha-8", "lora-r16+alpha-16", "mine", "mine-2"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "0"], "--rows: '0'"),
        (["--rows", "-5"], "--rows: '-5'"),
        (["--rows", "0.2"], "--rows: '0.2' is less than one row"),
        (["--rows", "many"], "--rows: 'many' is not a count"),
        (["--rows", "10", "--epochs", "0"], "--epochs: '0' is not a number of epochs above 0"),
        (["--rows", "10", "--epochs", "nan"], "--epochs: 'nan'"),
        (["--rows", "10", "--epochs", "1e9"], "up to 100,000; write 3 or 0.5"),
        (["--epochs", "3"], "--epochs: needs your rows; add --rows N or --lengths FILE"),
    ],
)
def test_nonsense_about_the_own_data_is_refused(cli, survey, arguments, said):
    ended = cli("probe", "m", *arguments)
    assert ended.code == 2
    assert said in ended.err


def test_a_file_needs_only_epochs(cli, survey, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n')
    request = asked(cli, survey, "--lengths", str(file), "--epochs", "3")
    assert request.training == TrainingRequest(None, 3.0)
    assert asked(cli, survey, "--lengths", str(file)).training == TrainingRequest(None, 1.0)


def test_all_faults_are_told_at_once(cli, survey):
    ended = cli(
        "probe", "--quiet", "--vram", "24XB", "--headroom", "200%", "--seq-len", "0",
        "--micro-batch", "3", "--weights", "real", "--tokens", "some", "--time-limit", "soon",
        "--seed", "-1", "--task", "x", "--source", "y", "--rank-by", "z", "--eval-batch", "1.5",
        "--python", "/no/such/python",
    )  # fmt: skip
    assert (ended.code, survey.request) == (2, None)
    options = (
        "MODEL --vram --headroom --seq-len --micro-batch --weights --tokens --time-limit --seed "
        "--task --source --rank-by --eval-batch --python"
    )
    assert [option for option in options.split() if f"{option}: " not in ended.err] == []
    assert "hint:  run `oomdoctor probe --help`" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--seed", str(2**63)],
            "--seed: '9223372036854775808' is above the maximum of 9223372036854775807",
        ),
        (["--micro-batch", "3"], "--micro-batch: 3 does not divide the effective batch size 4"),
        (["--recipe", "none"], "there is nothing to try"),
        (["--recipe", "no-such"], "no-such"),
        (["--rung", "method=lore"], "lora"),
        (["--format", "pdf"], "'pdf' is not one of table, markdown, csv, json, html"),
        (["--format", "csv", "--json"], "csv and --json contradict each other"),
        (["--output", "no/such/folder/file.json"], "does not exist"),
        (["--output", "."], "is a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_fault_says_what_and_why(cli, survey, arguments, words):
    ended = cli("probe", "m", "--quiet", *arguments)
    assert (ended.code, survey.request) == (2, None)
    assert words in ended.err


@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json"])
def test_the_answer_comes_once_in_the_chosen_format(cli, survey, format_):
    ended = cli("probe", "m", "--format", format_)
    label = survey.answer.results[0].label
    assert label in ended.out
    assert label not in ended.err
    if format_ == "json":
        assert json.loads(ended.out)["results"][0]["label"] == label
    if format_ == "csv":
        rows = list(csv.DictReader(io.StringIO(ended.out)))
        assert len(rows) == len(survey.answer.results)
    if format_ == "table":
        assert ended.out.count("tokens/s") >= 1
        assert max(map(len, ended.out.splitlines())) > 120  # a pipe gets whole rows


def test_json_is_short_for_format_json(cli, survey):
    short, long = cli("probe", "m", "--json").out, cli("probe", "m", "--format", "json").out
    assert short == long


def test_verbose_says_more(cli, survey):
    assert len(cli("probe", "m", "-v").out) > len(cli("probe", "m").out)


def test_quiet_says_nothing_but_the_answer(cli, survey):
    assert cli("probe", "m", "-q").err == ""
    assert cli("probe", "m").err != ""


@pytest.mark.parametrize(
    ("suffix", "start"), [(".json", "{"), (".csv", "place,"), (".txt", "Fits: ")]
)
def test_the_file_gets_the_answer_too(cli, survey, tmp_path, suffix, start):
    file = tmp_path / f"report{suffix}"
    ended = cli("probe", "m", "--output", str(file))
    assert ended.out.startswith("Fits: ")
    assert file.read_text().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_file_that_cannot_be_written_costs_no_answer(cli, survey, tmp_path):
    file = tmp_path / "report.json"

    def obstruct(**_: object) -> None:
        file.mkdir()
        (file / "x").touch()

    survey.act = obstruct
    ended = cli("probe", "m", "--output", str(file))
    assert ended.code == 1
    assert survey.answer.results[0].label in ended.out
    assert "cannot write" in ended.err


def test_a_pipe_is_written_to_and_not_replaced(cli, survey, tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    assert cli("probe", "m", "--output", str(pipe)).code == survey.answer.exit_code
    assert pipe.is_fifo()
    reader.join(timeout=10)
    assert got[0].startswith("Fits: ")


def test_a_survey_that_cannot_start_leaves_no_run(cli, survey):
    survey.answer = model_error("missing", "there is no such model")
    assert cli("probe", "m").code == 4
    assert list(stored_runs()) == []


class TestNeverStarted:
    """A run whose worker never did anything is no run; one that holds an answer stays."""

    @pytest.fixture
    def left(self, survey, monkeypatch):
        """Ends the survey with these files in its folder, and an error with this hint."""

        def end(*files, hint=None, code="missing"):
            def act(request, folder, **_):
                folder.write_request(request)
                (folder.path / "lib").mkdir()
                for name in files:
                    path = folder.path / name
                    path.parent.mkdir(exist_ok=True)
                    path.write_text("{}")
                raise model_error(code, "no", hint and hint.format(folder.path))

            monkeypatch.setattr("oomdoctor.commands.probe.run_survey.run_survey", act)

        return end

    def test_it_is_gone(self, cli, left):
        left("host.log", "01-inspect/job.json")
        assert cli("probe", "m").code == 4
        assert list(stored_runs()) == []

    def test_it_is_gone_if_its_worker_only_found_a_library_missing(self, cli, left):
        files = [f"01-inspect/{name}" for name in ("job.json", "reply.json", "log.txt")]
        left("host.log", *files, code="library_missing")
        assert cli("probe", "m").code == 4
        assert list(stored_runs()) == []

    def test_one_that_measured_before_a_library_was_missing_stays(self, cli, left):
        left("host.log", "01-inspect/job.json", "02-lora/job.json", code="library_missing")
        assert cli("probe", "m").code == 4
        assert len(list(stored_runs())) == 1

    def test_what_the_hint_names_stays_but_is_no_run(self, cli, left):
        left("host.log", "01-inspect/job.json", hint="see {}/host.log")
        assert cli("probe", "m").code == 4
        assert [run.status for run in stored_runs()] == ["foreign"]
        assert (Path(next(stored_runs()).path) / "host.log").exists()
        assert "there are no runs in" in cli("show").err

    @pytest.mark.parametrize(
        "file", ["report.json", "01-inspect/reply.json", "01-inspect/log.txt", "02-lora/job.json"]
    )
    def test_what_holds_an_answer_stays(self, cli, left, file):
        left("host.log", "01-inspect/job.json", file)
        assert cli("probe", "m").code == 4
        assert (run_list.open_run().path / file).exists()


class TestResume:
    """`--resume` goes on with a stored request; only what measures nothing may change."""

    @pytest.fixture
    def run(self, cli, survey):
        cli("probe", "m", "--seq-len", "64", "--tokens", "5M")
        survey.request = None
        return run_list.open_run().name

    @pytest.mark.parametrize("name", ["latest", "by name", "by folder"])
    def test_the_request_comes_from_disk(self, cli, survey, run, name):
        word = {"latest": name, "by name": run, "by folder": str(run_folders.runs_dir() / run)}[
            name
        ]
        assert cli("probe", "--resume", word).code == survey.answer.exit_code
        assert survey.request.sequence_length == 64
        assert survey.request.tokens == 5_000_000
        assert len(list(stored_runs())) == 1

    def test_what_measures_nothing_may_change(self, cli, survey, run):
        cli("probe", "m", "--resume", run, "--time-limit", "1m", "--rank-by", "memory", "-q")
        assert survey.request.time_limit_s == 60.0
        assert survey.request.rank_by == "memory"
        assert survey.request.tokens == 5_000_000

    def test_the_own_data_may_change(self, cli, survey, run):
        cli("probe", "m", "--resume", run, "--rows", "100", "-q")
        assert survey.request.training == TrainingRequest(100, 1.0)
        cli("probe", "m", "--resume", run, "--epochs", "3", "-q")
        assert survey.request.training == TrainingRequest(100, 3.0)
        cli("probe", "m", "--resume", run, "-q")
        assert survey.request.training == TrainingRequest(100, 3.0)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--seq-len", "32"], "--seq-len: cannot change"),
            (["--eval"], "--eval: cannot change"),
            (["--device", "auto"], "--device: cannot change"),
            (["other"], "MODEL: this run is about m, not other"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else None,
    )
    def test_what_would_be_another_survey_is_refused(self, cli, survey, run, arguments, words):
        ended = cli("probe", "--resume", run, *arguments)
        assert (ended.code, survey.request) == (2, None)
        assert words in ended.err

    def test_an_unknown_run_is_a_usage_error(self, cli, survey):
        assert cli("probe", "--resume", "no-such-run").code == 2

    def test_a_run_that_cannot_go_on_is_kept(self, cli, survey, run):
        survey.answer = model_error("missing", "gone")
        (run_folders.runs_dir() / run / "report.json").unlink()
        assert cli("probe", "--resume", run).code == 4
        assert len(list(stored_runs())) == 1


def test_calibrate_measures_no_model(cli):
    ended = cli("probe", "gpt2", "--calibrate", "--seq-len", "64")
    assert (ended.code, ended.out) == (2, "")
    assert "MODEL: does not apply to --calibrate, which measures only the device" in ended.err
    assert "--seq-len" in ended.err


def test_calibrate_says_what_it_measured(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    taken = times(find_gpu("NVIDIA L4"), {"matmul": 1.5}, clock="cpu")
    monkeypatch.setattr("oomdoctor.commands.probe.calibrate._measured", lambda *_: taken)
    ended = cli("probe", "--calibrate", "--device", "cpu", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert (document["status"], document["exit_code"], document["errors"]) == ("ok", 0, [])
    measured = document["calibration"]
    assert measured["kept"] and measured["clock"] == "cpu"
    assert [term["term"] for term in measured["terms"]] == ["products", "attention", "pointwise"]
    listed = cli("env")
    assert listed.code == 0
    assert "Measured by probe --calibrate" in listed.out
    kept = json.loads(cli("env", "--json").out)["environment"]["calibrated"]
    assert [device["name"] for device in kept] == [measured["device_name"]]
