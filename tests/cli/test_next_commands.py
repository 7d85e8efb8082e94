"""The commands that the tool prints can be pasted: each is read back, and some are run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from analysis_make import GIB, result
from tiny_models import tiny_folder

from oomdoctor.analysis.advice import measuring_commands, next_commands
from oomdoctor.analysis.command_line import command_line
from oomdoctor.analysis.verdict import NOT_REACHED
from oomdoctor.records.report.report import SurveyRequest

SHARED = (
    [],
    ["--source", "catalogue", "--task", "causal-lm", "--trust-remote-code", "--revision", "v 1"],
    [
        "--recipe",
        "qlora",
        "--micro-batch",
        "2",
        "--headroom",
        "5.5%",
        "--routing",
        "worst",
        "--tokens",
        "2.5B",
    ],
    ["--rung", "method=lora,lora_rank=64,lora_targets=q_proj+v_proj", "--rung", "loss=liger"],
    ["--recipe", "none", "--rung", "method=full,optimizer=sgd,micro_batch_size=1"],
    ["--recipe", "FILE.toml", "--seq-len", "4096", "--effective-batch", "32"],
    ["--lengths", "FILE.jsonl", "--tokenizer", "bytes/4", "--text-field", "my text"],
    ["--lengths", "FILE.jsonl", "--seq-len", "1024", "--rank-by", "memory"],
    ["--python", "/bin/sh", "--fresh"],
    ["--from", "FILE.yaml", "--recipe", "none"],
    ["--from", "trl:FILE.yaml", "--seq-len", "256", "--rung", "method=lora"],
)
PROBES = (
    [],
    ["--vram", "24", "--device", "cpu"],
    ["--vram", "24GB", "--device", "cuda:0", "--eval", "--eval-batch", "4", "--seed", "7"],
    ["--weights", "pretrained", "--no-predict", "--rung-timeout", "90s"],
    ["--emulate", "2x RTX 4090", "--vram", "16GiB", "--ranks", "all"],
    ["--gpus", "2", "--device", "cpu"],
)
PLANS = (
    ["--gpu", "RTX 4090"],
    ["--gpu", "80GiB", "--verify"],
    ["--gpu", "H100", "--gpus", "8", "--interconnect", "pcie", "--host-memory", "512GiB"],
    ["--gpu", "H100", "--gpus", "1..8", "--min"],
    ["--gpu", "24", "--gpu", "a100 80gb"],
    ["--all-gpus"],
    ["--all-gpus", "--min-vram", "24", "--sort", "memory"],
    ["--gpu", "T4", "--gpu", "L4", "--price", "FILE.csv"],
    ["--gpu", "T4", "--sweep", "micro-batch=1,2"],
    ["--gpu", "T4", "--solve", "lora-rank"],
    ["--gpu", "T4", "--with", "transformers==4.51.3", "--with", "torch==2.6.0"],
)
OUTCOMES = tuple(
    tuple(results)
    for results in (
        [],
        [result("fits", "fits", tokens_per_s=3.0), result("b", "oom", missed_by_bytes=GIB)],
        [result("a", "oom", missed_by_bytes=GIB)],
        [result("q", "oom", method="qlora"), result("t", "timed_out")],
        [result("c", "crashed"), result("u", "unsupported")],
        [result("h", "host_oom"), result("f", "failed")],
        [result("n", "skipped", failure=NOT_REACHED)],
    )
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--with` would download libraries; only its text matters here."""
    monkeypatch.setattr("oomdoctor.cli.streams.carry_out.make_environment", lambda *_, **__: None)
    monkeypatch.setattr("oomdoctor.commands.user_training.checked", lambda found, *_, **__: found)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a space in its name, a recipe, a data file and a model."""
    folder = tmp_path / "my files"
    tiny_folder(folder / "model")
    (folder / "own.toml").write_text('[[rung]]\nlabel = "my rung"\nmethod = "lora"\n')
    (folder / "my prices.csv").write_text("T4,0.5\nL4,0.7\n")
    (folder / "rows.jsonl").write_text('{"text": "abc"}\n')
    (folder / "train.yaml").write_text(
        "max_length: 512\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 16\n"
    )
    monkeypatch.chdir(folder)
    return folder


def _arguments(words: list[str], files: Path) -> list[str]:
    named = {
        "FILE.csv": str(files / "my prices.csv"),
        "FILE.toml": "own.toml",
        "FILE.jsonl": str(files / "rows.jsonl"),
        "FILE.yaml": "train.yaml",
        "trl:FILE.yaml": f"trl:{files / 'train.yaml'}",
    }
    return [named.get(word, word) for word in words]


def _asked(cli, fake, words: list[str]) -> SurveyRequest:
    """The request behind a command line."""
    fake.request = None
    ended = cli(*words)
    assert fake.request is not None, (words, ended.err)
    return fake.request


@pytest.mark.parametrize(
    "words", [[*own, *shared] for own, shared in product(PROBES, SHARED)], ids=" ".join
)
def test_a_probe_is_asked_again_with_all_its_options(cli, survey, files, words):
    request = _asked(cli, survey, ["probe", str(files / "model"), *_arguments(words, files)])
    _check(cli, survey, request, command_line(request))


@pytest.mark.parametrize(
    "words", [[*own, *shared] for own, shared in product(PLANS, SHARED)], ids=" ".join
)
def test_a_plan_is_asked_again_with_all_its_options(cli, planned, files, words):
    only_one = {"--sweep", "--solve"} & set(words)
    two_of_them = only_one and ("--lengths" in words or "--micro-batch" in words)
    no_rank = "lora-rank" in words and "none" in words
    no_check = "--lengths" in words and {"--verify", "--min"} & set(words)
    if two_of_them or no_rank or no_check or {"--with", "--python"} <= set(words):
        pytest.skip("these options exclude each other")
    request = _asked(cli, planned, ["plan", "org/a model", *_arguments(words, files)])
    _check(cli, planned, request, command_line(request))


def test_the_rung_to_explain_is_kept(cli, planned, files):
    typed = ["plan", "m", "--gpu", "T4", "--recipe", "own.toml", "--why", "my rung"]
    request = _asked(cli, planned, typed)
    _check(cli, planned, request, command_line(request))


def test_an_answer_of_solve_is_asked_again_and_measured(cli, planned, survey, files):
    request = _asked(cli, planned, ["plan", "m", "--gpu", "T4", "--solve", "seq-len"])
    config = replace(request.recipe.rungs[0].config, sequence_length=640, micro_batch_size=1)
    fitting = [replace(result("a", "fits", tokens_per_s=3.0), label="a", config=config)]
    again, *_ = next_commands(fitting, request, None)
    (measured,) = measuring_commands(fitting, request)
    for line, fake in ((again, planned), (measured, survey)):
        (rung,) = _asked(cli, fake, shlex.split(line)[1:]).recipe.rungs
        assert rung.config == config


def test_the_rung_with_the_largest_value_comes_next_not_the_fastest(cli, planned, survey, files):
    request = _asked(cli, planned, ["plan", "m", "--gpu", "T4", "--solve", "seq-len"])
    at = [
        replace(rung.config, sequence_length=length, micro_batch_size=1)
        for rung, length in zip(request.recipe.rungs, (640, 5248), strict=False)
    ]
    fitting = [
        replace(result("fast", "fits", tokens_per_s=9.0), config=at[0]),
        replace(result("long", "fits", tokens_per_s=3.0), config=at[1]),
    ]
    again, *_ = next_commands(fitting, request, None)
    (measured,) = measuring_commands(fitting, request)
    for line, fake in ((again, planned), (measured, survey)):
        (rung,) = _asked(cli, fake, shlex.split(line)[1:]).recipe.rungs
        assert rung.config == at[1]


def _check(cli, fake, request: SurveyRequest, line: str) -> None:
    again = _asked(cli, fake, shlex.split(line)[1:])
    assert again == replace(request, time_limit_s=None)


@pytest.mark.parametrize("results", OUTCOMES, ids=lambda rows: "+".join(r.outcome for r in rows))
@pytest.mark.parametrize("words", SHARED[1:9:2], ids=" ".join)
def test_every_next_command_can_be_read(cli, survey, planned, files, words, results):
    for verb, own, fake in (
        ("probe", [], survey),
        ("probe", ["--vram", "8GiB", "--device", "cpu"], survey),
        ("plan", ["--gpu", "RTX 4090"], planned),
        ("plan", ["--gpu", "24GiB"], planned),
        ("plan", ["--all-gpus"], planned),
    ):
        request = _asked(cli, fake, [verb, str(files / "model"), *own, *_arguments(words, files)])
        if results and any(row.outcome == "fits" for row in results) and verb == "plan":
            label = request.recipe.rungs[0].label
            results = tuple(replace(row, label=label) for row in results)
        lines = [
            *next_commands(results, request, None, on_cpu=True),
            *next_commands(results, request, None, pages=True),
            *next_commands(results, request, None, interrupted=True),
            *measuring_commands(results, request),
        ]
        assert lines
        for line in lines:
            _check_reads(cli, survey, planned, line)


def _check_reads(cli, survey, planned, line: str) -> None:
    program, verb, *rest = shlex.split(line)
    assert program == "oomdoctor"
    assert not re.search(r"\b(MODEL|FILE|RUN|SIZE|N|CARD)\b", line.partition("--text-field")[0])
    if "--calibrate" in rest:
        assert cli(verb, *rest, "--device", "cpu").code == 0
    elif verb in ("probe", "plan") and "--resume" not in rest:
        _asked(cli, survey if verb == "probe" else planned, [verb, *rest])
    elif verb == "show":
        assert set(rest) <= {"--verbose", "--format", "json", "--html", "report.html"}
    else:
        assert (verb, rest) in (("models", []), ("env", []), ("probe", ["--resume", "latest"]))


@pytest.mark.parametrize("gpu", [False, True], ids=["no gpu", "gpu"])
@pytest.mark.parametrize(
    "typed",
    [
        [],
        ["--model", "gpt2"],
        ["--model", "gpt2", "--seq-len", "512", "--micro-batch", "6"],
        ["--config", "tests/data/explain/train.yaml"],
        ["--micro-batch", "2", "--config", "tests/data/explain/train.yaml"],
        ["--config", "SHARDED"],
    ],
    ids=" ".join,
)
def test_what_explain_says_next_can_be_typed(
    cli, survey, planned, monkeypatch, tmp_path, typed, gpu
):
    """`plan` takes no file that shards without saying over how many GPUs."""
    sharded = tmp_path / "train.yaml"
    sharded.write_text("model_name_or_path: gpt2\ndeepspeed: ds.json\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    typed = [str(sharded) if word == "SHARDED" else word for word in typed]
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr("oomdoctor.system.machine.nvml.may_have_gpu", lambda: gpu)
    first = cli("explain", "tests/data/explain/trace.txt", *typed, "--json")
    lines = json.loads(first.out)["next_commands"]
    assert lines[0] == shlex.join(
        ["oomdoctor", "explain", "tests/data/explain/trace.txt", *typed, "--verbose"]
    )
    assert cli(*shlex.split(lines[0])[1:]).code == 0
    for line in lines[1:]:
        verb = shlex.split(line)[1]
        assert verb == ("probe" if gpu else "plan")
        _check_reads(cli, survey, planned, line)
    if typed:
        assert len(lines) == 2
        assert ("--from" in lines[1]) == ("tests/data/explain/train.yaml" in typed)


def test_a_plan_for_a_card_elsewhere_is_measured_elsewhere(golden):
    report = golden("plan")
    assert all("oomdoctor probe" not in line for line in report.next_commands)
    assert all(line.startswith("oomdoctor probe ") for line in report.next_on_gpu)


def test_examples_of_the_help_can_be_read(cli, survey, planned):
    for verb in ("probe", "plan"):
        page = cli(verb, "--help").out
        lines = re.findall(r"^    (oomdoctor .*)$", page, re.MULTILINE)
        assert len(lines) >= 2
        for line in lines:
            _check_reads(cli, survey, planned, line)


@pytest.mark.slow
def test_what_a_probe_and_a_plan_say_next_runs(files):
    """Every command, in a process of its own, on this machine."""
    base = ["model", "--recipe", "none", "--rung", "method=lora", "--effective-batch", "1"]
    typed = [
        ["probe", *base, "--device", "cpu", "--seq-len", "16", "--source", "local"],
        ["probe", *base, "--device", "cpu", "--seq-len", "16", "--vram", "1KiB"],
        ["plan", *base, "--gpu", "T4", "--seq-len", "32", "--headroom", "3%"],
        ["plan", *base, "--gpu", "1MiB", "--seq-len", "32"],
    ]
    ran: set[str] = set()
    for words in typed:
        found = json.loads(_run([*words, "--json"]).stdout)
        assert found["next_commands"], words
        for line in found["next_commands"]:
            if line in ran or "--all-gpus" in line or "--recipe qlora" in line:
                continue  # the same, with more work
            ran.add(line)
            ended = _run(shlex.split(line.partition(" > ")[0])[1:])
            assert ended.returncode in (0, 3), (line, ended.stderr)
    assert len(ran) >= 6
    assert sum(line.startswith("oomdoctor export 1 --to trl --run ") for line in ran) == 2


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from oomdoctor.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=250
    )
