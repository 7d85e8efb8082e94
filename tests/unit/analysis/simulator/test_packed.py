"""Recordings as bytes: nothing is lost, and nothing in a file is trusted."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import fields
from typing import Any

import pytest

from oomdoctor.analysis.allocator.records import OutOfMemory
from oomdoctor.analysis.simulator.card import RowSum
from oomdoctor.analysis.simulator.recorded import Cost, Floors, Held, Played, Recorded, RungFacts
from oomdoctor.analysis.simulator.recording_bytes import Pack, opened, packed, unpacked
from oomdoctor.analysis.simulator.tape import Tape, TapeBlock
from oomdoctor.records.facts.categories import CATEGORIES
from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.measurement import CurvePhase, MemoryCurve, PhaseMemory

FACTS = RungFacts(
    units=((4, 32),),
    least_bytes=10,
    trainable_parameters=1,
    parameters=2,
    simulated_layers=4,
    layers=32,
    attention="sdpa",
    notes=("a note",),
    versions={"torch": "2.13.0", "peft": None},
    torch_release=(2, 13),
    workspace_setting="",
    as_cuda=True,
)
COST = OpCost("mm", "matmul", "bfloat16", 10.0, 7.5)


def pack() -> Pack:
    tape = Tape(carried={1: 2})
    tape.enter("load", "load")
    weight = tape.born(TapeBlock(100, "weights", "", "model.layer", (0, 1)), (0, 1))
    tape.enter("first", "forward")
    other = tape.born(TapeBlock(5, "temporary", "aten::mm", "", None, rows=4000, stream=2), None)
    tape.died(other, None)
    tape.born(TapeBlock(0, "temporary", row_sum=RowSum(576, 2048, 4, 2, 4, semaphores=True)), None)
    recorded = Recorded(
        size=2,
        tape=tape,
        taken={weight: 2},
        alike={(8, 0), (8, 9)},
        attention_operators={"aten::attention"},
        managed_bytes=3,
        costs=[Cost((0, 1), 1, COST), Cost(None, 1, COST)],
        adding=[Cost(None, 0, COST)],
    )
    return Pack(
        FACTS,
        (recorded,),
        {
            "floors": Floors(
                105, {"first": {"forward": PhaseMemory(105)}}, dict.fromkeys(CATEGORIES, 15)
            ),
            "played": Played(
                1, 2, 3, {"first": {"forward": PhaseMemory(4, 5)}}, PhaseMemory(6, 7), (8,)
            ),
            "line": True,
            "curve": MemoryCurve(
                9, (3, 8), (5, 7), {"weights": (5, 6)}, (CurvePhase("load", "load", 0),), 1
            ),
            "held": Held(False, 7, OutOfMemory(1, 2, 3, 4, 5, None), "forward"),
        },
    )


SECTIONS = ("facts", "computed", "head", "tape", "costs")  # of a pack with one recording


def joined(sections: list[bytes]) -> bytes:
    return json.dumps([len(section) for section in sections]).encode() + b"\n" + b"".join(sections)


def split(data: bytes) -> list[bytes]:
    line, _, rest = data.partition(b"\n")
    stream = io.BytesIO(rest)
    return [stream.read(length) for length in json.loads(line)]


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    """A pack with another value at a place of a section."""
    sections = split(packed(pack()))
    at = SECTIONS.index(path[0])
    document = place = json.loads(zlib.decompress(sections[at]))
    for step in path[1:-1]:
        place = place[step]
    place[path[-1]] = value
    sections[at] = zlib.compress(json.dumps(document).encode())
    return joined(sections)


def test_nothing_is_lost() -> None:
    assert unpacked(packed(pack())) == pack()
    kept = opened(packed(pack())).recordings[0]
    (made,) = pack().recordings
    for name in (*(each.name for each in fields(made)), "windows"):
        assert getattr(kept, name) == getattr(made, name)


def test_sections_that_were_not_read_are_written_as_they_were() -> None:
    data = changed(("tape", "events"), [99])
    known = opened(data)  # the damage shows when it is asked for
    again = packed(Pack(known.facts, known.recordings, known.computed))
    assert split(again)[2:] == split(data)[2:]
    with pytest.raises(ValueError, match="block that does not exist"):
        _ = opened(again).recordings[0].tape


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not compressed",
        packed(pack())[:-9],
        b"null\n",
        b"[" * 100_000,
        b"[1]\n" + zlib.compress(b"{}"),
        b"[0,0]\n",
        b"[-1,1]\n",
        joined([zlib.compress(b"[" * 100_000)] * 2),
        joined([zlib.compress(b"null")] * 2),
        joined([zlib.compress(b"\xff")] * 5),
        joined([zlib.compress(b"{}")] * 5),
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpacked(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tape", "events"), [99]),
        (("tape", "events"), [1, "2", -2]),
        (("tape", "events"), [0, 0, 0]),
        (("tape", "regions"), [0]),
        (("tape", "blocks", 0), [-1, 2]),
        (("tape", "blocks", 2), [0, 77]),
        (("head", "size"), "2"),
        (("costs", "costs", 1), [0, 9]),
        (("costs", "operators"), [["mm", "matmul", "bfloat16", "many", 1.0, 0.0]]),
        (("head", "alike"), [["8", 0]]),
        (("facts", "held"), None),
        (("facts", "unknown"), 1),
        (("computed", "floors", "steps", "first", "forward", "peak_allocated_bytes"), 1.5),
        (("computed", "floors", "parts"), dict.fromkeys(CATEGORIES[1:], 15)),
        (("computed", "floors", "parts"), dict.fromkeys((*CATEGORIES, "unknown"), 15)),
        (("computed", "floors", "parts", "weights"), 1.5),
        (("computed", "played", "steps", "first", "forward", "peak_reserved_bytes"), None),
        (("computed", "played"), "x"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(ValueError):
        unpacked(changed(path, value))


def test_a_small_file_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomdoctor.analysis.simulator.recording_bytes._LARGEST", 1000)
    with pytest.raises(ValueError, match="too large"):
        unpacked(joined([zlib.compress(b"0" * 1_000_000)] * 2))
