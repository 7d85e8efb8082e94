"""What docs/monitor.md shows of recorded runs is what the same numbers give today."""

from __future__ import annotations

import re
from pathlib import Path

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.monitor.alerts import Alerts
from oomdoctor.monitor.guarding.diagnosed import text_of
from oomdoctor.monitor.readings import Reading
from oomdoctor.records.codec import shared
from oomdoctor.system.store.live_logs import read_log

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
FRAMES = """Traceback (most recent call last):
  File "guarded.py", line 16, in main
    output.square().mean().backward()
  File "/venv/site-packages/torch/_tensor.py", line 631, in backward
    torch.autograd.backward(
  File "/venv/site-packages/torch/autograd/graph.py", line 882, in _engine_run_backward
    return Variable._execution_engine.run_backward(
torch.OutOfMemoryError: """


def test_the_loop_that_leaks_is_warned_of_in_the_words_of_today() -> None:
    log = read_log(EXAMPLES / "memory.jsonl")
    assert log is not None
    free = next(step.free_bytes for step in log.steps if step.free_bytes is not None)
    capacity = log.steps[0].reserved_bytes + free
    step = log.steps[0]
    alerts = Alerts(0.92, log.header.total_steps, lambda _: step.allocated_bytes)
    said: list[str] = []
    for step in log.steps:
        row = Reading(**shared(step, Reading), capacity_bytes=capacity)
        said += [f"oomdoctor: {a.message}" for a in alerts.look(step.step, step.time_s, row)]
    recorded = (EXAMPLES / "leak.txt").read_text(encoding="utf-8").splitlines()
    # The time is asked again for the warning, so its last digit may differ.
    assert [re.sub(r"in \S+ s\b", "", line) for line in said] == [
        re.sub(r"in \S+ s\b", "", line) for line in recorded
    ], "run `python scripts/build_docs.py --run leak`"
    assert len(recorded) == 1 and "at about step 657" in recorded[0]


def test_the_guard_says_of_the_recorded_error_what_it_said() -> None:
    message, _, shown = (EXAMPLES / "guarded.txt").read_text(encoding="utf-8").partition("\n\n")
    (diagnosis,) = diagnose("this training", *scan(f"{FRAMES}{message}".splitlines()), Given())
    assert text_of(diagnosis) == shown.rstrip("\n"), (
        "run `python scripts/build_docs.py --run guarded`"
    )
    assert "in the backward pass" in shown and "Do this first" in shown
