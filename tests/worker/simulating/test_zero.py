"""A rung with ZeRO, from its simulated step on one GPU and a model of DeepSpeed's buffers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_job

from oomdoctor.analysis.simulator.predict import Knowledge, predictions
from oomdoctor.analysis.simulator.recorded import parameters_of
from oomdoctor.analysis.simulator.recording_bytes import opened
from oomdoctor.analysis.simulator.recordings import not_recorded
from oomdoctor.analysis.simulator.zero import NOTE
from oomdoctor.commands.jobs.remembered import Memory
from oomdoctor.records.job.model import LayerStack
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import PredictedSize, SimulationRequest, Target
from oomdoctor.system.catalogue import find_gpu, speed_errors
from oomdoctor.units import GIB
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.simulating.world import zero3_products
from oomdoctor.worker.training.inspection import inspect_model

TARGET = Target("card", 80 * GIB, 79 * GIB, GIB, find_gpu("NVIDIA L40S"))
LAYERS = {"num_hidden_layers": 8}  # more than are simulated
BUCKET = 2_000_000  # elements; DeepSpeed's default would outweigh a tiny model
ZERO = {
    "sharding": "zero2",
    "world_size": 4,
    "effective_batch_size": 16,
    "weights_dtype": "bfloat16",
    "bucket_elements": BUCKET,
}


def job(*, target: Target = TARGET, **changes: Any) -> ProbeJob:
    plain = deep(tiny_job(job_device_type="cuda", job_mode="simulate", **(ZERO | changes)))
    return replace(plain, simulation=SimulationRequest((1, 2, 4), (target,), stacks()))


def deep(job: ProbeJob) -> ProbeJob:
    return replace(job, model=replace(job.model, config={**job.model.config, **LAYERS}))


@cache
def stacks() -> tuple[LayerStack, ...]:
    return inspect_model(deep(tiny_job())).stacks


def predicted(asked: ProbeJob, size: int = 1) -> PredictedSize:
    (found,) = simulate(asked, PhaseFile(None))
    return next(one for one in found.sizes if one.micro_batch_size == size)


def test_a_rung_with_zero_has_peaks_times_and_a_verdict() -> None:
    found = predicted(job(), 4)
    measured = found.measurement
    assert measured.peak_allocated_bytes > 2 * measured.parameters + 2 * BUCKET
    assert measured.peak_allocated_bytes == max(
        memory.peak_allocated_bytes for memory in measured.phases.values()
    )
    assert measured.peak_reserved_bytes is None
    assert NOTE in measured.notes
    (on_card,) = found.devices
    assert (on_card.fits, on_card.peak_reserved_bytes, on_card.missed_by_bytes) == (
        True,
        None,
        None,
    )
    assert on_card.timing is not None


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3", "fsdp"])
def test_what_is_not_sharded_has_one_name_with_every_engine(sharding: str) -> None:
    parts = []
    for engine in (sharding, "ddp"):
        asked = job(sharding=engine, sequence_length=512, bucket_elements=1000)
        breakdown = predicted(asked, 4).measurement.breakdown
        assert breakdown is not None
        parts.append(breakdown)
    engine, replicas = parts
    assert engine.logits_bytes == replicas.logits_bytes > 0
    assert engine.activations_bytes == pytest.approx(replicas.activations_bytes, rel=0.01)


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_a_rung_with_zero_has_a_curve_to_its_peak(sharding: str) -> None:
    asked = job(sharding=sharding)
    assert asked.simulation is not None
    found = predicted(replace(asked, simulation=replace(asked.simulation, curve=True)), 4)
    curve = found.measurement.curve
    assert curve is not None
    assert curve.allocated_bytes[curve.peak] == found.measurement.peak_allocated_bytes
    assert [phase.phase for phase in curve.phases] == ["load", "forward", "backward", "optimizer"]
    starts = [phase.moment for phase in curve.phases]
    for phase, first, end in zip(
        curve.phases, starts, [*starts[1:], len(curve.event)], strict=True
    ):
        top = max(curve.allocated_bytes[first:end])
        assert top == found.measurement.phases[phase.phase].peak_allocated_bytes
    assert all(curve.rest_bytes(moment) == 0 for moment in range(len(curve.event)))
    assert starts[3] - starts[2] > 3  # gradients are made one after the other


def test_few_layers_tell_what_all_need() -> None:
    asked = job(bucket_elements=1000)
    assert asked.simulation is not None
    whole = replace(asked, simulation=replace(asked.simulation, stacks=()))
    assert predicted(asked).measurement == predicted(whole).measurement


def test_a_card_that_is_too_small_is_short_by_what_the_tensors_need() -> None:
    small = Target("small", 3 << 20, 3 << 20, 0, None)
    found = predicted(job(target=small))
    (on_card,) = found.devices
    assert not on_card.fits
    assert on_card.missed_by_bytes == found.measurement.peak_allocated_bytes - (3 << 20)


def test_later_stages_and_offload_take_less_of_the_gpu() -> None:
    def peak(**changes: Any) -> int:
        return predicted(job(bucket_elements=1000, **changes)).measurement.peak_allocated_bytes

    assert peak(sharding="zero1") > peak() > peak(offload="optimizer")
    three = {"sharding": "zero3"}
    assert peak(**three) > peak(**three, offload="optimizer") > peak(**three, offload="parameters")


def test_only_adapters_have_gradients_and_states() -> None:
    full, lora = (predicted(job(method=method)).measurement for method in ("full", "lora"))
    assert lora.trainable_parameters < lora.parameters / 3
    assert lora.breakdown is not None and full.breakdown is not None
    for name in ("gradients_bytes", "optimizer_bytes"):
        assert 0 < getattr(lora.breakdown, name) < getattr(full.breakdown, name) / 2


def test_what_is_kept_of_it_answers_for_any_number_of_gpus(tmp_path: Path) -> None:
    asked = job()
    file = tmp_path / "recordings"
    assert asked.simulation is not None
    (whole,) = simulate(
        replace(asked, simulation=replace(asked.simulation, recordings=str(file))), PhaseFile(None)
    )
    pack = opened(file.read_bytes())
    total = whole.sizes[0].measurement.parameters
    assert sum(parameter.elements for parameter in parameters_of(pack.facts)) == total

    def again(config: Any) -> Any:
        known = Knowledge(speed_errors(), lambda message, phase: None)
        arguments = (asked.simulation, pack, not_recorded, known)
        return predictions(config, *arguments)[0].sizes

    assert again(asked.config) == whole.sizes
    more = again(replace(asked.config, world_size=8, effective_batch_size=32))
    peaks = [sizes[0].measurement.peak_allocated_bytes for sizes in (whole.sizes, more)]
    assert peaks[1] < peaks[0]


def test_the_key_of_what_is_kept_does_not_depend_on_the_number_of_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Memory, "_libraries", {"torch": "2.13"})
    memory = Memory("python", {})
    asked = job()

    def key(**changes: Any) -> str | None:
        return memory.key(replace(asked, config=replace(asked.config, **changes)))

    assert key() is not None
    assert key() == key(world_size=8, bucket_elements=1)
    # Whether these are supported is not the same.
    assert len({key(), key(sharding="zero3"), key(offload="optimizer"), key(optimizer="sgd")}) == 4
    assert key() != key(sharding="none", world_size=1, bucket_elements=0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sharding": "zero3", "method": "qlora", "quantization": "nf4"}, "quantized weights"),
        ({"offload": "parameters"}, "only fsdp and zero3"),
        ({"offload": "optimizer", "optimizer": "adamw_bnb_8bit"}, "only updates on the GPU"),
    ],
)
def test_what_the_model_does_not_know_is_not_supported(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        simulate(job(**changes), PhaseFile(None))


def test_zero3_keeps_the_input_of_a_frozen_layer() -> None:
    layer = torch.nn.Linear(3, 2).requires_grad_(False)
    rows = torch.ones(4, 5, 3, requires_grad=True)

    def kept() -> tuple[list[tuple[int, ...]], torch.Tensor]:
        saved: list[tuple[int, ...]] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            (gradient,) = torch.autograd.grad(layer(rows).sum(), rows)
        return saved, gradient

    plain, expected = kept()
    with zero3_products():
        gathered, gradient = kept()
    assert (4, 5, 3) in gathered and (4, 5, 3) not in plain
    assert torch.equal(gradient, expected)
