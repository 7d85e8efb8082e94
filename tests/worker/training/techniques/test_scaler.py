"""A step that the gradient scaler skipped is not the step whose memory counts."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import tiny_job

from oomdoctor.worker.measuring import measure as measuring
from oomdoctor.worker.protocol.progress import PhaseFile
from oomdoctor.worker.training.step import training_step


def test_skipped_steps_are_repeated_until_states_are_born(monkeypatch: pytest.MonkeyPatch) -> None:
    skips = 3
    done = 0

    def sometimes_skipped(setup: Any, batches: Any, mark: Any) -> Any:
        nonlocal done
        done += 1
        if done > skips:
            return training_step(setup, batches, mark)
        optimizer = setup.trainer.optimizer
        step, optimizer.step = optimizer.step, lambda: setattr(optimizer, "_is_overflow", True)
        try:
            return training_step(setup, batches, mark)
        finally:
            optimizer.step = step

    class Skipping:
        """accelerate's property reads the optimizers; here it says what happened above."""

        def __get__(self, *_: Any) -> bool:
            return done <= skips

    import accelerate

    monkeypatch.setattr(accelerate.Accelerator, "optimizer_step_was_skipped", Skipping())
    monkeypatch.setattr(measuring, "training_step", sometimes_skipped)
    result = measuring.measure(tiny_job("dense"), PhaseFile(None))
    assert done == skips + len(measuring.MEMORY_STEPS)
    assert result.breakdown is not None
    assert result.breakdown.optimizer_bytes >= 8 * result.parameters
