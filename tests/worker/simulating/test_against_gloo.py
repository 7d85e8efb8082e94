"""A simulated rank needs the tensor bytes that ranks on the CPU were measured to need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_ends import needs_fsdp_on_cpu
from tiny_models import tiny_job
from weekly_rows import weekly
from worker_process import answered

from oomdoctor.analysis.simulator.playback import RecordedRung
from oomdoctor.records.configuration.config import held_micro_batches
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.simulating.simulate import simulated_rung

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_NEAR = 0.01  # of a peak
_LARGEST = 512 * 64 * 4  # bytes of the embedding, the largest tensor that ranks send


@pytest.mark.parametrize(
    ("sharding", "world", "more"),
    [
        weekly("fsdp", 2, {}, marks=needs_fsdp_on_cpu),
        pytest.param("fsdp_grad_op", 2, {}, marks=needs_fsdp_on_cpu),
        weekly("fsdp", 4, {}, marks=needs_fsdp_on_cpu),
        pytest.param("fsdp", 2, {"objective": "dpo"}, marks=needs_fsdp_on_cpu),
        pytest.param("fsdp", 2, {"loss": "chunked"}, marks=needs_fsdp_on_cpu),
        ("ddp", 2, {"objective": "dpo"}),
    ],
)
def test_ranks_on_the_cpu(sharding: str, world: int, more: dict[str, Any], tmp_path: Path) -> None:
    if more:
        pytest.importorskip("trl.kernels", exc_type=ImportError)
    plain = tiny_job("dense", micro_batch_size=1, sequence_length=64)
    values: dict[str, Any] = {"sharding": sharding, "world_size": world, **more}
    config = replace(plain.config, effective_batch_size=world, **values)
    job = replace(plain, config=config, timed=False)
    reply = answered(job, tmp_path)
    assert reply.measurement is not None, reply
    simulated = replace(job, mode="simulate", simulation=SimulationRequest((1,), (), as_cuda=False))
    with clean_slate(), simulated_rung(simulated, PhaseFile(None), shallow=False) as recorder:
        rung = RecordedRung(recorder.whole.depths)
        recorded = recorder.record(1)
        rung.add(1, recorded.tape, recorded.taken, recorded.accumulated)
    held = held_micro_batches(config, on_cpu=True)
    layout = rung.layout(1, accumulates=False, held=held)
    found = layout.outline.peaks(layout.sizes)
    measured = reply.measurement
    for step, phases in (("first", measured.first_step), ("steady", measured.steady)):
        for phase, memory in phases.items():
            predicted = found[step, phase].size
            difference = memory.peak_allocated_bytes - predicted
            # gloo's own thread may still hold the gradients that it sent last.
            sent = _LARGEST if phase in ("backward", "optimizer") else 0
            near = _NEAR * predicted
            assert -near <= difference <= near + sent, (step, phase, difference, predicted)
