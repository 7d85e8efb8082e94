"""One simulated rank of FSDP: its bytes, and a few layers that stand for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared_steps import CPU
from tiny_configs import CONFIGS
from tiny_models import tiny_job

from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.simulator.playback import Layout, RecordedRung, play
from oomdoctor.records.facts.categories import GRADIENTS, OPTIMIZER, TEMPORARY, WEIGHTS
from oomdoctor.records.job.model import LayerStack
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulated_rung
from oomdoctor.worker.training.build import build

LAYERS, RANKS = 7, 4
# Of rotary embeddings: 8 frequencies, which transformers since 5 keeps a second time as a buffer.
BUFFERS = sum(buffer.nbytes for buffer in build(tiny_job("dense"), CPU).model.buffers())


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> ProbeJob:
    monkeypatch.setitem(CONFIGS["dense"][2], "num_hidden_layers", LAYERS)
    made = tiny_job("dense", sharding="fsdp", world_size=RANKS, effective_batch_size=2 * RANKS)
    return replace(made, mode="simulate")


def layouts(job: ProbeJob, stacks: tuple[LayerStack, ...]) -> tuple[Layout, Layout]:
    """Of a step with one micro-step, and of one with two."""
    job = replace(job, simulation=SimulationRequest((1,), (), as_cuda=True, stacks=stacks))
    with clean_slate(), simulated_rung(job, PhaseFile(None), shallow=bool(stacks)) as recorder:
        recorded = recorder.record(1)
        rung = RecordedRung(recorder.whole.depths)
        rung.add(1, recorded.tape, recorded.taken, recorded.accumulated)
    return rung.layout(1, accumulates=False), rung.layout(1, accumulates=True)


def of_category(layout: Layout, category: str) -> int:
    """Bytes of a category at the end, of gradients of all that were made in the first step."""
    alive: dict[int, int] = {}
    end = next(start for start, step, _ in layout.order.windows if step == "steady")
    for event in layout.order.events[:end]:
        source = layout.order.origin[abs(event) - 1]
        if layout.blocks[source].category == category:
            if event > 0:
                alive[event] = layout.sizes[source]
            elif category != GRADIENTS:
                del alive[-event]
    return sum(alive.values())


def test_a_few_layers_of_a_rank_stand_for_all(job: ProbeJob) -> None:
    stack = LayerStack("model.layers", ("0",) * LAYERS, prefix=0, period=1, units=LAYERS)
    few, whole = layouts(job, (stack,)), layouts(job, ())
    for one, other in zip(few, whole, strict=True):
        assert one.outline.windows == other.outline.windows
        assert after_load(one) == after_load(other)
    settings = AllocatorSettings(equal_blocks="oldest_segment")
    for one in few:
        streams = {one.blocks[source].stream for source in one.order.origin}
        assert len(streams) == 3  # the default one, that of gathering and that of reducing
        played = play(one, settings)
        alone = play(replace(one, blocks=[replace(b, stream=0) for b in one.blocks]), settings)
        assert played.peak_reserved_bytes > alone.peak_reserved_bytes
    # Without a reduction, the first micro-step leaves whole gradients.
    assert peak(few[1], "backward") > peak(few[0], "backward")

    parameters = sum(  # all dimensions are multiples of the ranks
        size for size in (2 * 512 * 64, 64, *(LAYERS * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64),))
    )
    assert of_category(whole[0], WEIGHTS) - BUFFERS == 4 * parameters // RANKS
    assert of_category(whole[0], GRADIENTS) == 4 * parameters // RANKS
    states = of_category(whole[0], OPTIMIZER) - 2 * 4 * parameters // RANKS
    assert 0 <= states < 16 * 1024  # the counts of steps


@pytest.mark.parametrize(
    "changes", [{"objective": "dpo"}, {"objective": "dpo", "reference": "precomputed"}]
)
def test_the_reference_of_a_rank_is_one_unit(job: ProbeJob, changes: dict[str, str]) -> None:
    """Its weights are gathered in one block, so all of its layers are simulated."""
    pytest.importorskip("trl.kernels", exc_type=ImportError)
    job = replace(job, config=replace(job.config, **changes))  # type: ignore[arg-type]
    stack = LayerStack("model.layers", ("0",) * LAYERS, prefix=0, period=1, units=LAYERS)
    few, whole = layouts(job, (stack,))[0], layouts(job, ())[0]
    assert few.outline.windows == whole.outline.windows
    assert after_load(few) == after_load(whole)
    table = 512 * 64
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    all_weights = 4 * (2 * table + LAYERS * layer + 64)
    gathered = all_weights in {size for born, size in after_load(whole) if born > 0}
    assert gathered == ("reference" not in changes)


def test_buckets_hold_all_gradients_again(job: ProbeJob) -> None:
    stack = LayerStack("model.layers", ("0",) * LAYERS, prefix=0, period=1, units=LAYERS)
    alone = replace(job.config, sharding="none", world_size=1, effective_batch_size=2)
    plain, _ = layouts(replace(job, config=alone), (stack,))
    copied, _ = layouts(replace(job, config=replace(job.config, sharding="ddp")), (stack,))
    weights = of_category(plain, WEIGHTS)
    sizes = [b.size for b in copied.blocks if b.operator == "ddp" and b.category == TEMPORARY]
    sent, bucket = sizes  # DDP first sends a copy of the weights and buffers to the other ranks
    assert (sent, bucket) == (weights, weights - BUFFERS)
    grown = peak(copied, "backward") - peak(plain, "backward")
    assert 0 <= grown - bucket < 512  # the allocator rounds


def test_quantized_weights_are_refused(job: ProbeJob) -> None:
    config = replace(job.config, method="qlora", quantization="nf4", weights_dtype="bfloat16")
    with pytest.raises(UnsupportedError, match="quantized"):
        layouts(replace(job, config=config), ())


def after_load(layout: Layout) -> list[tuple[int, int]]:
    """The events of the steps: births with their bytes and deaths."""
    start = next(at for at, step, _ in layout.order.windows if step == "first")
    found = []
    for event in layout.order.events[start:]:
        block = layout.order.origin[abs(event) - 1]
        size = layout.sizes[block]
        found.append((1 if event > 0 else -1, size))
    return found


def peak(layout: Layout, phase: str) -> int:
    played = play(layout, AllocatorSettings())
    windows = zip(layout.outline.windows, played.windows, strict=True)
    return max(w.peak_allocated_bytes for (_, name), w in windows if name == phase)
