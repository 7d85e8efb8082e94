"""Changes of a training whose effect can be computed.

A lever is a change of the table of changes, which decides its cost and what it excludes; its lines
are those of the row with its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.analysis.changes.table import BY_KEY, TABLE, Change, Tier
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.training.assumed import Training
from oomdoctor.records.facts.architectures import LIGER_FAMILIES
from oomdoctor.records.facts.optimizers import OPTIMIZERS, is_paged, optimizer_named

_SHORTEST = 256  # tokens: shorter sequences are rarely worth training on


@dataclass(frozen=True, slots=True)
class Lever:
    """One change of the table, as far as the closed form can compute it.

    `changes` gives what changes in the training; none if the lever cannot help. `word` names it in
    a set.
    """

    key: str
    word: str
    changes: Callable[[Case, Training], Iterator[Mapping[str, Any]]]
    change: Change

    @property
    def cost(self) -> float:
        """Its place in the table of changes, by which sets of levers are ordered."""
        return 1.0 + TABLE.index(self.change)

    @property
    def tier(self) -> int:
        """0 for the same method, 1 for LoRA, 2 for fewer bits."""
        return {Tier.LORA: 1, Tier.QLORA: 2}.get(self.change.tier, 0)


def _if(condition: bool, **changes: Any) -> Iterator[Mapping[str, Any]]:
    if condition:
        yield changes


def _of_table(key: str, training: Training, helps: bool) -> Iterator[Mapping[str, Any]]:
    """The steps of a change of the table, if the closed form knows that it helps."""
    return BY_KEY[key].steps(training.config) if helps else iter(())


def _liger(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    assert case.sizes is not None  # there is a total
    known = any(name in case.sizes.model_type for name in LIGER_FAMILIES)
    return _of_table("liger", training, case.trains and known and training.tokens is not None)


def _sdpa(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    assert case.sizes is not None  # there is a total
    return _of_table("sdpa", training, training.tokens is not None and not case.sizes.capped_scores)


def _own_states(case: Case, training: Training) -> bool:
    """Whether the states are on the device and as wide as the optimizer makes them."""
    on_device = not training.states_on_host and not is_paged(training.config.optimizer)
    return case.trains and on_device and not training.master_weights


def _optimizer(name: str) -> Callable[[Case, Training], Iterator[Mapping[str, Any]]]:
    def changes(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
        row = optimizer_named(training.config.optimizer)
        lean = row is not None and row.lean
        helps = _own_states(case, training) and training.config.method == "full"
        return _if(helps and not (lean and not OPTIMIZERS[name].paged), optimizer=name)

    return changes


def _fused(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    row = optimizer_named(training.config.optimizer)
    foreach = row is not None and row.kernel == "foreach" and row.moments == 2
    return _if(_own_states(case, training) and foreach, optimizer="adamw_torch_fused")


def _offload(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    helps = (
        case.trains and training.config.method == "full" and not is_paged(training.config.optimizer)
    )
    return _if(helps and not training.states_on_host, offload="optimizer")


def _checkpointing(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    return _of_table("checkpointing", training, training.tokens is not None)


def _batch(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    return _of_table("smaller_batch", training, training.tokens is not None)


def _length(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    del case
    length = training.sequence_length
    if length is None or training.tokens is None:
        return
    while length // 2 >= _SHORTEST:
        length //= 2
        yield {"sequence_length": length}


def _half(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    del case
    wide = training.config.weights_dtype == "float32" and training.config.method != "qlora"
    return _if(wide, weights_dtype="bfloat16")


def _shard(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    several = (
        training.config.world_size > 1 and training.stage < 3 and training.config.method != "qlora"
    )
    return _if(case.trains and several, sharding="fsdp")


def _lora(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    adapted = {"method": "lora", "autocast_dtype": _autocast(training)}
    return _if(case.trains and training.config.method == "full", **adapted)


def _qlora(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    adapted = {
        "method": "qlora", "quantization": "nf4", "autocast_dtype": _autocast(training)
    }  # fmt: skip
    return _if(case.trains and training.config.method != "qlora" and training.stage < 3, **adapted)


def _autocast(training: Training) -> str:
    """The autocast that adapters are trained with: its own, or that of bf16=True."""
    return training.config.autocast_dtype if training.autocast else "bfloat16"


def _quantized(case: Case, training: Training) -> Iterator[Mapping[str, Any]]:
    fewer = {"method": "qlora", "quantization": "nf4", "kbit_prepare": "none"}
    return _if(not case.trains and training.config.method != "qlora", **fewer)


LEVERS: tuple[Lever, ...] = (
    Lever("smaller_batch", "micro-batch $batch", _batch, BY_KEY["smaller_batch"]),
    Lever("sdpa", "fused attention", _sdpa, BY_KEY["sdpa"]),
    Lever("fused_optimizer", "the fused optimizer", _fused, BY_KEY["fused_optimizer"]),
    Lever("checkpointing", "activation checkpointing", _checkpointing, BY_KEY["checkpointing"]),
    Lever("liger", "the loss in chunks (Liger)", _liger, BY_KEY["liger"]),
    Lever("shard", "sharding across your $world GPUs", _shard, BY_KEY["shard"]),
    Lever("adamw_8bit", "8-bit AdamW", _optimizer("adamw_bnb_8bit"), BY_KEY["adamw_8bit"]),
    Lever(
        "paged_adamw", "paged 8-bit AdamW", _optimizer("paged_adamw_8bit"), BY_KEY["paged_adamw"]
    ),
    Lever("half_weights", "bfloat16 weights", _half, BY_KEY["half_weights"]),
    Lever(
        "offload_optimizer",
        "optimizer states in host memory",
        _offload,
        BY_KEY["offload_optimizer"],
    ),
    Lever("lora", "LoRA", _lora, BY_KEY["lora"]),
    Lever("qlora", "QLoRA", _qlora, BY_KEY["qlora"]),
    Lever("quantized_load", "4-bit weights", _quantized, BY_KEY["qlora"]),
    Lever("shorter_sequence", "sequences of $length tokens", _length, BY_KEY["shorter_sequence"]),
)
