"""One simulation for several cards says of each what a simulation of its own would say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_targets import target
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import Prediction, SimulationRequest, Target
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.simulating.simulate import simulate

# Attention: efficient before 8.0, flash from there, cuDNN's on 9.0; larger workspaces on 9.0.
CARDS = ("Tesla T4", "Tesla V100-SXM2-16GB", "RTX 4090", "H100 SXM", "RTX 5090")


def job_for(*targets: Target, sizes: tuple[int, ...] = (1, 2, 4, 8), **rung: Any) -> ProbeJob:
    job = tiny_job("gqa-tied", effective_batch_size=8, weights_dtype="bfloat16", **rung)
    config = {**job.model.config, "head_dim": 64}
    job = replace(job, model=replace(job.model, config=config))
    return replace(job, mode="simulate", simulation=SimulationRequest(sizes, targets))


def told_of(name: str, predictions: tuple[Prediction, ...]) -> list[tuple[Any, ...]]:
    return [
        (size.micro_batch_size, predicted.fits, size.measurement.phases, predicted.timing)
        for prediction in predictions
        for size in prediction.sizes
        for predicted in size.devices
        if predicted.target == name
    ]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_shared_simulation_says_what_one_for_each_card_says(attention: str) -> None:
    together = simulate(job_for(*map(target, CARDS), attention=attention), PhaseFile(None))
    for name in CARDS:
        alone = simulate(job_for(target(name), attention=attention), PhaseFile(None))
        assert told_of(name, together) == told_of(name, alone) != [], name


@pytest.mark.slow
def test_cards_that_differ_in_workspaces_alone_share_recordings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from oomdoctor.worker.simulating.recorder import Recorder

    recorded: list[tuple[int, Any]] = []
    record = Recorder.record

    def counted(self: Recorder, size: int, card: Any = None) -> Any:
        recorded.append((size, card))
        return record(self, size, card)

    monkeypatch.setattr(Recorder, "record", counted)
    cards = target("RTX 4090"), target("H100 SXM")
    ada, hopper = simulate(job_for(*cards, attention="eager"), PhaseFile(None))
    assert len({card for _, card in recorded}) == 1
    larger = hopper.sizes[0].measurement.peak_allocated_bytes
    assert larger - ada.sizes[0].measurement.peak_allocated_bytes > 2 * 20 * (1 << 20)
    recorded.clear()
    simulate(job_for(target("RTX 4090"), target("Tesla T4")), PhaseFile(None))
    assert len({card for _, card in recorded}) == 2  # other attention kernels


def test_three_recordings_serve_every_card_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from oomdoctor.worker.simulating.recorder import Recorder

    recorded: list[int] = []
    record = Recorder.record

    def noted(self: Recorder, size: int, card: Any = None) -> Any:
        recorded.append(size)
        return record(self, size, card)

    monkeypatch.setattr(Recorder, "record", noted)
    (free,) = simulate(job_for(target("RTX 4090")), PhaseFile(None))
    peaks = {s.micro_batch_size: s.measurement.peak_allocated_bytes for s in free.sizes}
    (tight,) = simulate(job_for(target("RTX 4090", peaks[1] + 100_000)), PhaseFile(None))
    assert recorded == [1, 2, 61] * 2
    assert [size.micro_batch_size for size in tight.sizes] == [1, 2]  # 2 is known to be too much
