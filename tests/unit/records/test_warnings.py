"""Every warning has a code that is listed, and one wording."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

import oomdoctor
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.machine import GpuProcess
from oomdoctor.records.job.measurement import Load
from oomdoctor.records.job.result import OUTCOME_WORDS, Outcome
from oomdoctor.records.report import warnings
from oomdoctor.records.report.diagnosis import RESOURCE_WORDS, Resource
from oomdoctor.records.report.report import Warn

PACKAGE = Path(oomdoctor.__file__).parent
GIB = 1 << 30
# Function -> a call of it, and a word that the reader needs.
CALLS: dict[str, tuple[Callable[[], Warn], str]] = {
    "unusual_sizes": (
        lambda: warnings.unusual_sizes([TrainConfig(effective_batch_size=100_000)])[0],
        "effective batch size 100,000 is far above the usual 8 to 512",
    ),
    "host_memory_short": (
        lambda: warnings.host_memory_short({"zero2x8": 9 * GIB}, 4 * GIB, here=True),
        "more host memory than the 4.00 GiB of this machine, so the kernel may kill them: zero2x8 "
        "(9.00 GiB)",
    ),
    "other_processes": (lambda: warnings.other_processes([GpuProcess(7, None, None)]), "pid 7"),
    "foreign_load": (
        lambda: warnings.foreign_load([Load(8, 8, 2.0, 6.26, 0.1), Load(8, 8, 2.0, None, 0.4)]),
        "the GPU for up to 40% of the time and up to 6.3 of 8 CPU cores while 2 config",
    ),
    "calibration_ignored": (
        lambda: warnings.calibration_ignored("NVIDIA L4", "run-7"),
        "run run-7 stored about NVIDIA L4",
    ),
    "quoted": (lambda: warnings.quoted("slurm", ["job 1 failed"])[0], "job 1 failed"),
    "not_read": (lambda: warnings.not_read("log_unreadable", "a is a folder"), "a is a folder"),
}
# Code, wording -> the values that it is filled with, and a word that the reader needs.
WORDED: dict[tuple[str, str], tuple[dict[str, object], str]] = {
    ("sequence_length", "lowered"): (
        {"model": "gpt2", "limit": 1024, "asked": 4096},
        "4,096 to 1,024",
    ),
    ("sequence_length", "sweep"): ({"model": "gpt2", "limit": 1024}, "1,024"),
    ("beyond_positions", "text"): (
        {"model": "Qwen3", "limit": 40960, "asked": 131072},
        "states 40,960 positions; its code computes positions of any length, so 131,072 tokens",
    ),
    ("left_out", "text"): ({"names": ["fp8+ddpx2"]}, "several GPUs with ddp: fp8+ddpx2"),
    ("not_recorded", "text"): (
        {"kind": "trace", "label": "lora-r16", "reason": "it did not run"},
        "no trace of lora-r16: it did not run",
    ),
    ("not_exact", "text"): ({"reason": "no torch"}, "sizes are computed: no torch"),
    ("not_exact", "partly"): ({"reason": "no torch"}, "so some sizes are computed: no torch"),
    ("snapshot_unused", "text"): ({"name": "s.pickle"}, "has the size of the failed one"),
    ("snapshot_unused", "none_failed"): (
        {"name": "s.pickle"},
        "s.pickle was not used: no request failed in it",
    ),
    ("no_card", "text"): (
        {"sizes": ["24 GiB"], "by_peak": True},
        "24 GiB is a size, not a card: speed cannot be estimated, so configurations are ranked",
    ),
    ("several_gpus", "text"): ({"machine": "p4d.24xlarge", "gpus": 8}, "--gpus 8 is for all"),
    ("lora_targets", "text"): ({"targets": ["in_proj", "x_proj"]}, "LoRA is on in_proj, x_proj"),
    ("speed_unknown", "text"): (
        {"cards": ["NVIDIA A10G"], "types": "bfloat16", "by_peak": True},
        "NVIDIA A10G: too few figures are published to estimate the speed of bfloat16 "
        "configurations; configurations are ranked by peak memory; run `oomdoctor probe`",
    ),
    ("gpu_variant", "text"): (
        {"asked": "A100", "taken": "A100 40GB", "others": ["A100 80GB"]},
        "using the smallest, A100 40GB",
    ),
    ("prices", "unknown"): ({"source": "p.csv", "names": ["X1"]}, "X1 is not a known card;"),
    ("float16_rungs", "text"): ({"cards": ["Tesla T4"]}, "Tesla T4 has no bfloat16"),
    ("bfloat16_emulated", "text"): (
        {"cards": ["A", "B", "C", "D"], "labels": ["full-bf16"]},
        "4 cards emulate bfloat16, which is slower than float32: full-bf16;",
    ),
    ("time_not_believable", "text"): (
        {"rungs": 1, "share": "473%", "what": "arithmetic peak"},
        "1 configuration has times that imply up to 473% of the card's arithmetic peak",
    ),
    ("prices", "examples"): ({"source": "Lambda on 2026-05-07"}, "examples from Lambda on 2026"),
    ("prices", "repeated"): ({"source": "p.csv", "cards": ["L4"]}, "L4 more than once"),
    ("prices", "not_compared"): (
        {"source": "p.csv", "cards": ["AMD Instinct MI300X", "MI250"]},
        "p.csv: AMD Instinct MI300X, MI250 left out, because --all-gpus compares NVIDIA cards",
    ),
    ("prices", "of_others"): ({"source": "p.csv"}, "no price for any card"),
    ("not_nvidia", "text"): ({"cards": ["MI300X"]}, "ROCm"),
    ("cap_above_free", "text"): ({"cap": "24.0 GiB", "free": "20.0 GiB"}, "20.0 GiB"),
    ("memory_not_free", "text"): ({"missing": "1.00 GiB"}, "1.00 GiB"),
    ("emulated_device", "text"): ({}, "no speeds"),
    ("engines_not_run", "text"): (
        {"reason": "torch has no CUDA build"},
        "names an interpreter with a CUDA build of torch (torch has no CUDA build)",
    ),
    ("not_checked", "text"): (
        {"failed": "full-bf16 (timed out)"},
        "only predicted: full-bf16 (timed out)",
    ),
    ("moe_routing", "text"): ({}, "synthetic"),
    ("time_limit", "text"): ({}, "--resume"),
    ("not_kept", "text"): ({"reason": "No space left on device"}, "XDG_CACHE_HOME"),
    ("few_addresses", "text"): (
        {"limit": "`ulimit -v` allows each process 2.00 GiB", "remedy": "raise it"},
        "2.00 GiB; configurations with large tensors may need more and get no result; raise it",
    ),
    ("unknown_values", "text"): ({"message": "AssertionError"}, "(AssertionError)"),
    ("ended_from_outside", "text"): ({"said": "signal 9"}, "signal 9"),
    ("waited", "text"): ({"seconds": 60}, "kept waiting for 60 s after its training was stopped"),
    ("cut_off", "text"): ({"ranks": ["0", "3"]}, "ranks 0, 3 were killed"),
    ("gpu_unused", "text"): ({}, "-I, -E or -S"),
    ("inexact", "text"): (
        {"parts": "the workspaces of cuSOLVER are lower bounds"},
        "memory is not exact here: the workspaces of cuSOLVER",
    ),
    ("no_values", "text"): ({"reason": "no C++ compiler"}, "(no C++ compiler)"),
    ("shared_memory", "text"): ({"card": "NVIDIA GB10"}, "takes from the same memory"),
    ("one_rank", "text"): ({"ranks": 64}, "only rank 0 of 64 ran"),
    ("one_rank", "failed"): ({"ranks": 64}, "leave out --ranks 1"),
    ("unknown_loop", "text"): (
        {"place": "train.py:7", "turns": 256, "grows": True},
        "after 256 turns, and each turn kept memory",
    ),
    ("not_steady", "text"): ({"steps": 1200}, "all 1,200 steps"),
}


def test_every_wording_is_here() -> None:
    made = {
        name
        for name, value in vars(warnings).items()
        if callable(value) and getattr(value, "__module__", None) == warnings.__name__
        if name not in ("codes", "warning", "_Wording")
    }
    assert made == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_wording_of_a_function(name: str) -> None:
    call, needed = CALLS[name]
    found = call()
    assert found.code in warnings.codes() or name == "not_read"
    assert needed in found.message
    assert "{" not in found.message
    assert not found.message.endswith((".", "…"))


@pytest.mark.parametrize(("code", "wording"), WORDED)
def test_wording(code: str, wording: str) -> None:
    values, needed = WORDED[code, wording]
    found = warnings.warning(code, wording, **values)
    assert found.code == code
    assert needed in found.message
    assert "{" not in found.message
    assert not found.message.endswith((".", "…"))


def test_every_code_is_given_by_a_wording() -> None:
    given = {call().code for call, _ in CALLS.values()} | {code for code, _ in WORDED}
    quoted = set(get_args(warnings.NoteCode))
    assert {code for code in warnings.codes() if not code.startswith("(")} <= given | quoted


def _calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of a function by its name in the package outside of its module, with the place."""
    for path in PACKAGE.rglob("*.py"):
        if path == Path(warnings.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == name:
                yield f"{path}:{node.lineno}", node


def _said(argument: ast.expr) -> str | None:
    """A text, or a name that this module has for it; None for other code."""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    return getattr(warnings, getattr(argument, "id", ""), None)


def test_what_gives_a_warning_fills_its_wording() -> None:
    worded: dict[str, set[frozenset[str]]] = {}
    for (code, _), (values, _) in WORDED.items():
        worded.setdefault(code, set()).add(frozenset(values))
    given = set()
    for place, call in _calls("warning"):
        code, *more = (_said(argument) for argument in call.args)
        if code is None:
            continue  # the function of another module, about a rung
        given.add(code)
        assert frozenset(word.arg or "" for word in call.keywords) in worded[code], place
        assert all(wording is None or (code, wording) in WORDED for wording in more), place
    assert given == set(worded)


def test_nothing_else_words_a_warning() -> None:
    assert not [place for place, _ in _calls("Warn")]


def test_every_outcome_and_resource_has_words() -> None:
    assert set(OUTCOME_WORDS) == set(get_args(Outcome))
    assert len(set(OUTCOME_WORDS.values())) == len(OUTCOME_WORDS)
    assert set(RESOURCE_WORDS) == set(get_args(Resource))
