"""Every warning has a code that is listed, and one wording."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import oomdoctor
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.machine import GpuProcess
from oomdoctor.records.job.result import OUTCOME_WORDS, Outcome
from oomdoctor.records.report import warnings
from oomdoctor.records.report.diagnosis import RESOURCE_WORDS, Resource
from oomdoctor.records.report.report import Warn

PACKAGE = Path(oomdoctor.__file__).parent
GIB = 1 << 30
# Function -> a call of it, and a word that the reader needs.
CALLS: dict[str, tuple[Callable[[], Warn], str]] = {
    "sequence_lowered": (lambda: warnings.sequence_lowered("gpt2", 1024, 4096), "4,096 to 1,024"),
    "sweep_ends": (lambda: warnings.sweep_ends("gpt2", 1024), "1,024"),
    "unusual_sizes": (
        lambda: warnings.unusual_sizes([TrainConfig(effective_batch_size=100_000)])[0],
        "effective batch size 100,000 is far above the usual 8 to 512",
    ),
    "not_recorded": (
        lambda: warnings.not_recorded("trace", "lora-r16", "it did not run"),
        "no trace of lora-r16: it did not run",
    ),
    "not_exact": (lambda: warnings.not_exact("no torch"), "sizes are computed: no torch"),
    "snapshot_unused": (
        lambda: warnings.snapshot_unused("s.pickle", any_failed=False),
        "s.pickle was not used: no request failed in it",
    ),
    "host_memory_short": (
        lambda: warnings.host_memory_short({"zero2x8": 9 * GIB}, 4 * GIB, here=True),
        "more host memory than the 4.00 GiB of this machine, so the kernel may kill them: zero2x8 "
        "(9.00 GiB)",
    ),
    "not_a_card": (lambda: warnings.not_a_card(["24 GiB"], ranked_by_speed=True), "24 GiB is"),
    "speed_unknown": (
        lambda: warnings.speed_unknown(["NVIDIA A10G"], ["bfloat16"], ranked_by_speed=True),
        "NVIDIA A10G: too few figures are published to estimate the speed of bfloat16 rungs; rungs "
        "are ranked by peak memory;",
    ),
    "smallest_variant": (
        lambda: warnings.smallest_variant("A100", "A100 40GB", ["A100 80GB"]),
        "using the smallest, A100 40GB",
    ),
    "prices_unknown": (lambda: warnings.prices_unknown("p.csv", ["X1"]), "X1 is not a known card"),
    "prices_repeated": (lambda: warnings.prices_repeated("p.csv", ["L4"]), "L4 more than once"),
    "prices_not_compared": (
        lambda: warnings.prices_not_compared("p.csv", ["AMD Instinct MI300X"]),
        "p.csv: AMD Instinct MI300X left out, because --all-gpus compares NVIDIA cards",
    ),
    "prices_of_others": (lambda: warnings.prices_of_others("p.csv"), "no price for any card"),
    "float16_rungs": (lambda: warnings.float16_rungs(["Tesla T4"]), "Tesla T4 has no bfloat16"),
    "bfloat16_emulated": (
        lambda: warnings.bfloat16_emulated(["A", "B", "C", "D"], ["full-bf16"]),
        "4 cards emulate bfloat16, which is slower than float32: full-bf16;",
    ),
    "not_nvidia": (lambda: warnings.not_nvidia(["MI300X"]), "ROCm"),
    "cap_above_free": (lambda: warnings.cap_above_free(24 * GIB, 20 * GIB), "20.0 GiB"),
    "other_processes": (lambda: warnings.other_processes([GpuProcess(7, None, None)]), "pid 7"),
    "memory_not_free": (lambda: warnings.memory_not_free(GIB), "1.00 GiB"),
    "foreign_load": (
        lambda: warnings.foreign_load(2, cpus=8, foreign_cpus=6.26, foreign_gpu=0.4),
        "the GPU for up to 40% of the time and up to 6.3 of 8 CPU cores while 2 rungs were",
    ),
    "calibration_ignored": (
        lambda: warnings.calibration_ignored("NVIDIA L4", "run-7"),
        "run run-7 stored about NVIDIA L4",
    ),
    "emulated_device": (warnings.emulated_device, "no speeds"),
    "engines_not_run": (
        lambda: warnings.engines_not_run("torch has no CUDA build"),
        "names an interpreter with a CUDA build of torch (torch has no CUDA build)",
    ),
    "not_checked": (
        lambda: warnings.not_checked({"full-bf16": "timed out"}),
        "only predicted: full-bf16 (timed out)",
    ),
    "time_not_believable": (
        lambda: warnings.time_not_believable(1, 4.73, "arithmetic peak"),
        "1 rung has times that imply up to 473% of the card's arithmetic peak",
    ),
    "moe_routing": (warnings.moe_routing, "synthetic"),
    "time_limit": (warnings.time_limit, "--resume"),
    "not_kept": (lambda: warnings.not_kept("No space left on device"), "XDG_CACHE_HOME"),
    "few_addresses": (
        lambda: warnings.few_addresses("`ulimit -v` allows each process 2.00 GiB", "raise it"),
        "2.00 GiB; rungs with large tensors may need more and get no result; raise it",
    ),
    "unknown_values": (lambda: warnings.unknown_values("AssertionError"), "(AssertionError)"),
    "ended_from_outside": (lambda: warnings.ended_from_outside("signal 9"), "signal 9"),
    "gpu_unused": (warnings.gpu_unused, "-I, -E or -S"),
    "no_values": (lambda: warnings.no_values("no C++ compiler"), "(no C++ compiler)"),
    "one_rank": (lambda: warnings.one_rank(64), "only rank 0 of 64 ran"),
    "not_steady": (lambda: warnings.not_steady(1200), "all 1,200 steps"),
    "quoted": (lambda: warnings.quoted("slurm", ["job 1 failed"])[0], "job 1 failed"),
    "not_read": (lambda: warnings.not_read("log_unreadable", "a is a folder"), "a is a folder"),
}


def test_every_wording_is_here() -> None:
    made = {
        name
        for name, value in vars(warnings).items()
        if callable(value) and getattr(value, "__module__", None) == warnings.__name__
        if name not in ("codes", "_warn")
    }
    assert made == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_wording(name: str) -> None:
    call, needed = CALLS[name]
    found = call()
    assert found.code in warnings.codes() or name == "not_read"
    assert needed in found.message
    assert "{" not in found.message
    assert not found.message.endswith((".", "…"))


def test_every_code_is_given_by_a_wording() -> None:
    given = {call().code for call, _ in CALLS.values()}
    quoted = set(get_args(warnings.NoteCode))
    assert {code for code in warnings.codes() if not code.startswith("(")} <= given | quoted


def test_nothing_else_words_a_warning() -> None:
    made = [
        f"{path}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path != Path(warnings.__file__)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Warn"
    ]
    assert not made


def test_every_outcome_and_resource_has_words() -> None:
    assert set(OUTCOME_WORDS) == set(get_args(Outcome))
    assert len(set(OUTCOME_WORDS.values())) == len(OUTCOME_WORDS)
    assert set(RESOURCE_WORDS) == set(get_args(Resource))
