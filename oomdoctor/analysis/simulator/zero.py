"""A rung with DeepSpeed's ZeRO, from a simulation of its step on one GPU without an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oomdoctor.analysis.memory.breakdown import breakdown
from oomdoctor.analysis.memory.closed_form import trained_bytes
from oomdoctor.analysis.memory.phases import peak_phase
from oomdoctor.analysis.memory.zero import parameters_of, zero_peaks
from oomdoctor.analysis.simulator.beside import beside_of
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.speed.throughput import compute_dtype
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.categories import CATEGORIES
from oomdoctor.records.measurement import Measurement, PhaseMemory, RankPeak
from oomdoctor.records.model import ParameterCounts

NOTE = "DeepSpeed needs CUDA, so its buffers are modeled from its code; reserved memory is unknown"


def alone_config(config: TrainConfig) -> TrainConfig:
    """The rung to simulate for one with ZeRO: one micro-batch on one GPU, in DeepSpeed's types.

    DeepSpeed casts the model to 16 bits where others would use autocast.
    """
    assert isinstance(config.micro_batch_size, int)
    plain = TrainConfig()
    return replace(
        config,
        sharding="none",
        world_size=1,
        effective_batch_size=config.micro_batch_size,
        weights_dtype=_dtype(config),
        autocast_dtype="none",
        offload="activations" if config.offload == "activations" else "none",
        bucket_elements=plain.bucket_elements,
        prefetch=plain.prefetch,
        reduce_dtype=plain.reduce_dtype,
        sync_each_batch=plain.sync_each_batch,
    )


def zero_measurement(
    config: TrainConfig,
    alone: Measurement,
    layout: Layout,
    counts: ParameterCounts,
    model_config: Mapping[str, Any],
) -> Measurement:
    """What the rank of a rung with ZeRO would measure that needs the most.

    `alone` and `layout` are those of `alone_config`. Reserved memory is not known: the order in
    which DeepSpeed allocates is not modeled.

    Raises:
        ValueError: the states of the optimizer are not known, or the weights are quantized.
    """
    each = trained_bytes(config.method, _dtype(config))
    beside = beside_of(layout, each)
    adapters = 0 if config.method == "full" else alone.trainable_parameters
    parameters = parameters_of(counts, model_config, adapters=adapters)
    peaks = zero_peaks(config, parameters, beside)
    phases = {name: PhaseMemory(peak.size_bytes) for name, peak in peaks.phases.items()}
    highest = peaks.phases[peaks.peak_phase]
    return replace(
        alone,
        peak_allocated_bytes=peaks.peak_bytes,
        peak_reserved_bytes=None,
        peak_phase=peak_phase(phases),
        phases=phases,
        first_step={},
        steady={},
        breakdown=breakdown(
            {**dict.fromkeys(CATEGORIES, 0), **highest.by_category}, peaks.peak_bytes
        ),
        timing=None,
        notes=(*alone.notes, NOTE),
        ranks=(RankPeak(peaks.rank, peaks.peak_bytes, None),),
    )


def _dtype(config: TrainConfig) -> Any:
    return compute_dtype(config)
