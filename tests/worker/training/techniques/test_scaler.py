"""A step that the gradient scaler skipped is not the step whose memory counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_job

from oomdoctor.records.job.result import RecordingRequest
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.worker.measuring import measure as measuring
from oomdoctor.worker.measuring.record import record
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.training import step as steps
from oomdoctor.worker.training.step import training_step

SKIPS = 3


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """The steps so far, of which the scaler skips the first ones."""
    done: list[None] = []

    def sometimes_skipped(setup: Any, batches: Any, mark: Any) -> None:
        done.append(None)
        if len(done) > SKIPS:
            training_step(setup, batches, mark)
            return
        optimizer = setup.trainer.optimizer
        step, optimizer.step = optimizer.step, lambda: setattr(optimizer, "_is_overflow", True)
        try:
            training_step(setup, batches, mark)
        finally:
            optimizer.step = step

    class Skipping:
        """accelerate's property reads the optimizers; here it says what happened above."""

        def __get__(self, *_: Any) -> bool:
            return len(done) <= SKIPS

    import accelerate

    monkeypatch.setattr(accelerate.Accelerator, "optimizer_step_was_skipped", Skipping())
    monkeypatch.setattr(steps, "training_step", sometimes_skipped)
    return done


def test_skipped_steps_are_repeated_until_states_are_born(done: list[None]) -> None:
    result = measuring.measure(tiny_job("dense"), PhaseFile(None))
    assert len(done) == SKIPS + len(measuring.MEMORY_STEPS)
    assert result.breakdown is not None
    assert result.breakdown.optimizer_bytes >= 8 * result.parameters


def test_a_snapshot_has_steps_that_were_not_skipped(done: list[None], tmp_path: Path) -> None:
    asked = RecordingRequest("snapshot", str(tmp_path / "s.pickle"))
    job = replace(tiny_job("dense"), mode="record", recording=asked)
    record(job, PhaseFile(None))
    snapshot = read_snapshot(Path(asked.file))
    (device,) = snapshot.devices
    peak = device_of(history_of(snapshot, device)).peak
    assert peak is not None
    assert len(done) == SKIPS + 3
    assert peak.categories.optimizer_bytes > 1.5 * peak.categories.weights_bytes
