"""The predicted step on a time line: no time is lost, and nothing overlaps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from step_work import A100, ADD, BUSY, IDLE, taken_apart

from oomdoctor.analysis.simulator.step_parts import Engine
from oomdoctor.analysis.simulator.step_slices import Slice, step_slices
from oomdoctor.analysis.simulator.timing import Work
from oomdoctor.commands.plan.trace import trace_document


def slices(
    work: Work, engine: Engine | None = None, most: int = 10_000, **waits: float
) -> tuple[list[Slice], float]:
    assert A100 is not None
    engine = engine or Engine()
    step, _ = taken_apart(work, engine=engine, **waits)
    return step_slices(work, step, A100, None, engine, most), step.seconds


@pytest.mark.parametrize("most", [10_000, 20])
@pytest.mark.parametrize("work", [BUSY, IDLE])
@pytest.mark.parametrize(
    ("engine", "waits"),
    [(Engine(), {}), (Engine(0.5), {"micro": 0.2, "update": 0.1}), (Engine(0.0, 0.7), {})],
)
def test_slices_follow_each_other_and_add_up_to_the_step(
    most: int, work: Work, engine: Engine, waits: dict[str, float]
) -> None:
    made, step_s = slices(work, engine, most, **waits)
    assert sum(each.seconds for each in made) == pytest.approx(step_s)
    assert len(made) < 20 or most > 20
    document = trace_document(made, "full", "A100")
    for track in (1, 2):
        events = [e for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] == track]
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] * (1 + 1e-9)
        assert sum(event["dur"] for event in events) == pytest.approx(step_s * 1e6)


def test_layers_are_at_full_depth_with_their_bytes_and_operations() -> None:
    made, _ = slices(BUSY)
    adds = [each for each in made if each.name == "add" and each.phase == "backward"]
    assert [each.layer for each in adds] == [(1, 3), (2, 3), (3, 3)]
    assert all(each.bytes_moved == ADD.bytes_moved for each in adds)
    # Without room for each kernel, a slice has those of all layers.
    grouped, _ = slices(BUSY, most=20)
    (together,) = (s for s in grouped if s.phase == "backward" and s.part == "memory")
    assert together.name == "3 layers: memory-bound"
    assert together.bytes_moved == sum(each.bytes_moved for each in adds)
    assert together.seconds == pytest.approx(sum(each.seconds for each in adds))
