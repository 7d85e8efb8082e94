"""What a Trainer holds at least after its steps: to evaluate, to generate and to save.

Lower bounds from sizes alone; the steps themselves are simulated. Weights and optimizer states
stay on the GPU. If it computes metrics, transformers' Trainer keeps the logits of all rows there
until the evaluation ends, or for `eval_accumulation_steps`. It joins them batch by batch, which
needs twice their size (`nested_concat` in trainer_pt_utils.py). With mixed precision accelerate
makes them float32. A sharded model is saved from whole tensors; the embedding is the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from oomdoctor.analysis.memory.rollout import cache_bytes
from oomdoctor.analysis.memory.shape import shape_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.result import ProbeResult

_EVAL_BATCH = 8  # transformers' default
_FLOAT = 4
_GENERATED = 20  # tokens, transformers' default


@dataclass(frozen=True, slots=True)
class LaterPhase:
    """A phase after the steps, and what it needs at least on the device, in bytes."""

    name: str
    at_least_bytes: int


def later_phases(
    args: Any, result: ProbeResult, model: Mapping[str, Any], rows: int | None, *, metrics: bool
) -> tuple[LaterPhase, ...]:
    """The phases of a training whose step is `result`. `model` is its config.json.

    `rows` is how many the evaluation has; None if that is not known. `metrics`: whether it
    computes some.
    """
    held, peak, reserved = result.breakdown, result.peak_device_bytes, result.peak_reserved_bytes
    shape = shape_of(model)
    if held is None or peak is None or reserved is None or shape.vocabulary is None:
        return ()
    config = result.config
    states = peak - reserved + held.weights_bytes + held.optimizer_bytes
    phases = []
    if str(getattr(_of(args, "eval_strategy"), "value", _of(args, "eval_strategy"))) != "no":
        if _of(args, "predict_with_generate"):
            more = _generated(args, config, model, shape.vocabulary)
            phases.append(LaterPhase("generation", states + more))
        else:
            more = _evaluated(args, config, shape.vocabulary, rows, metrics=metrics)
            phases.append(LaterPhase("evaluation", states + more))
    if config.world_size > 1 and config.sharding != "none" and shape.hidden is not None:
        whole = shape.vocabulary * shape.hidden * dtype_bytes(config.weights_dtype)
        phases.append(LaterPhase("saving", states + whole))
    return tuple(phases)


def _of(args: Any, name: str) -> Any:
    """A setting of an object or of a dict; "no" evaluation and None are the defaults."""
    value = args.get(name) if isinstance(args, Mapping) else getattr(args, name, None)
    return "no" if value is None and name == "eval_strategy" else value


def _evaluated(
    args: Any, config: TrainConfig, vocabulary: int, rows: int | None, *, metrics: bool
) -> int:
    batch = _of(args, "per_device_eval_batch_size") or _EVAL_BATCH
    mixed = config.autocast_dtype != "none"
    each = _FLOAT if mixed else dtype_bytes(config.weights_dtype)
    logits = round(batch * config.sequence_length * vocabulary * each)
    if not metrics or _of(args, "prediction_loss_only") or rows is None:
        return logits
    batches = ceil(rows / batch)
    batches = min(batches, _of(args, "eval_accumulation_steps") or batches)
    return logits * max(1, 2 * batches - 1)


def _generated(args: Any, config: TrainConfig, model: Mapping[str, Any], vocabulary: int) -> int:
    rows = (_of(args, "per_device_eval_batch_size") or _EVAL_BATCH) * (
        _of(args, "generation_num_beams") or 1
    )
    tokens = _of(args, "generation_max_length") or _GENERATED
    if not model.get("is_encoder_decoder"):
        tokens += config.sequence_length
    return (cache_bytes(config, model, rows, tokens) or 0) + rows * vocabulary * _FLOAT
