"""What a read gives in a second run, so that a branch goes the way that needs more."""

from __future__ import annotations

import ctypes

import pytest

from oomdoctor.monitor.inside import unknown_reads

best = 3.0
_HERE = unknown_reads.place_of(__file__, 0)


@pytest.fixture(autouse=True)
def _no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_branches", "_since_step", "_turns", "_ended", "_early", "_loops", "_first"):
        monkeypatch.setattr(unknown_reads, name, {})
    monkeypatch.setattr(unknown_reads, "_grown", set())
    monkeypatch.setattr(unknown_reads, "_allocated", lambda: 7)


def _asked(word: str, expression: str, *others: str, wanted: bool | None) -> None:
    test = {"word": word, "expression": expression, "others": others, "wanted": wanted}
    tests = unknown_reads._branches.setdefault(f"{_HERE[:-2]}:1", [])
    tests.append({**test, "file": _HERE})


def _read(kind: str = "f", value: float = 0.0) -> float:
    memory = ctypes.create_string_buffer(unknown_reads._packed(kind.encode(), value))
    place, size = (__file__, 1), len(memory.raw) - 1
    unknown_reads._answer(place, place, size, kind.encode(), ctypes.addressof(memory))
    return unknown_reads._unpacked(kind.encode(), memory.raw[:size])


@pytest.mark.parametrize(
    ("expression", "others", "wanted", "value"),
    [
        ("_number > 0.5", (), True, 1.5),
        ("_number > _0", ("best",), True, 4),
        ("_number > _0", ("best",), False, 0),
        ("_number < _0", ("best",), None, 4),
        ("_number > _0", ("unheard.of",), True, 2),
        ("abs(_number - 1) < 0.1 and _number > 0", (), True, 1),
        ("_number > 1e6", (), True, 1e6 + 1),
        ("_number <= float('inf')", (), None, 0),
    ],
)
def test_the_number_that_sends_a_branch_there(
    expression: str, others: tuple[str, ...], wanted: bool | None, value: float
) -> None:
    _asked("if", expression, *others, wanted=wanted)
    assert _read() == value


@pytest.mark.parametrize("kind", ["f", "d", "e", "r", "q", "i"])
def test_every_type_of_number(kind: str) -> None:
    _asked("if", "_number > 0.5", wanted=True)
    assert _read(kind) in (1.5, 2)


def test_a_truth() -> None:
    _asked("if", "", wanted=None)
    assert _read("?", False) == 1
    assert _read("?", True) == 0


def test_a_loop_has_some_turns_and_ends() -> None:
    _asked("while", "_number < 0.9", wanted=True)
    turns = [_read() for _ in range(2 * unknown_reads._TURNS + 2)]
    assert [turn >= 0.9 for turn in turns].count(True) == 2 and turns[unknown_reads._TURNS] >= 0.9
    (loop,) = unknown_reads.ended_loops()
    assert (loop["turns"], loop["grows"]) == (unknown_reads._TURNS, False)


def test_other_reads_give_what_they_gave() -> None:
    assert {_read(value=2.0) for _ in range(3 * unknown_reads._ENDLESS)} == {2.0}


def test_reads_between_which_memory_grows_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([5, 5, 9, 9, 9])
    monkeypatch.setattr(unknown_reads, "_allocated", lambda: next(sizes))
    _read()
    _read()
    assert (__file__, 1) not in unknown_reads._grown
    _read()
    assert (__file__, 1) in unknown_reads._grown
