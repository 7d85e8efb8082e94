"""Every warning has a code that is listed, and one wording."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import oomdoctor
from oomdoctor.records.diagnosis import Resource
from oomdoctor.records.facts import warnings
from oomdoctor.records.facts.outcomes import OUTCOME_WORDS, RESOURCE_WORDS
from oomdoctor.records.machine import GpuProcess
from oomdoctor.records.report import Warn
from oomdoctor.records.result import Outcome

PACKAGE = Path(oomdoctor.__file__).parent
GIB = 1 << 30
# Function -> a call of it, and a word that the reader needs.
CALLS: dict[str, tuple[Callable[[], Warn], str]] = {
    "sequence_lowered": (lambda: warnings.sequence_lowered("gpt2", 1024, 4096), "4,096 to 1,024"),
    "sweep_ends": (lambda: warnings.sweep_ends("gpt2", 1024), "1,024"),
    "not_a_card": (lambda: warnings.not_a_card(["24 GiB"], ranked_by_speed=True), "24 GiB is"),
    "smallest_variant": (
        lambda: warnings.smallest_variant("A100", "A100 40GB", ["A100 80GB"]),
        "using the smallest, A100 40GB",
    ),
    "not_nvidia": (lambda: warnings.not_nvidia(["MI300X"]), "ROCm"),
    "cap_above_free": (lambda: warnings.cap_above_free(24 * GIB, 20 * GIB), "20.0 GiB"),
    "other_processes": (lambda: warnings.other_processes([GpuProcess(7, None, None)]), "pid 7"),
    "memory_not_free": (lambda: warnings.memory_not_free(GIB), "1.00 GiB"),
    "moe_routing": (warnings.moe_routing, "synthetic"),
    "time_limit": (warnings.time_limit, "--resume"),
    "quoted": (lambda: warnings.quoted("slurm", ["job 1 failed"])[0], "job 1 failed"),
    "not_read": (lambda: warnings.not_read("log_unreadable", "a is a folder"), "a is a folder"),
}


def test_every_wording_is_here() -> None:
    made = {
        name
        for name, value in vars(warnings).items()
        if callable(value) and getattr(value, "__module__", None) == warnings.__name__
    }
    assert made == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_wording(name: str) -> None:
    call, needed = CALLS[name]
    found = call()
    assert found.code in warnings.CODES or name == "not_read"
    assert needed in found.message
    assert "{" not in found.message
    assert not found.message.endswith((".", "…"))


def test_every_code_is_given_by_a_wording() -> None:
    given = {call().code for call, _ in CALLS.values()}
    quoted = set(get_args(warnings.NoteCode))
    assert {code for code in warnings.CODES if not code.startswith("(")} <= given | quoted


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
