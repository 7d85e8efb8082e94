"""What settings of a file or a log tell about a training, read with the tables of `stacks`.

A few settings are enough: where none says the method, a rank of adapters or quantized weights do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from oomdoctor.records.facts.architectures import ROLES, ROLES_OF
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys, picked
from oomdoctor.stacks.programs import BY_NAME, recognize
from oomdoctor.stacks.reading.conclude import dtypes_of, fsdp_sharding, method_of
from oomdoctor.stacks.reading.partial import Partial, partial_of

_LARGEST = 10**8  # a model_max_length of 1e30 means "no limit"
_IN_4_BITS = re.compile(r"(?i)[-_](?:gptq|awq|(?:bnb-)?w?4bit|nf4|int4)(?![a-z])")
_LAUNCHER = "mixed_precision"
_NVME = "nvme"
_SIZES = (
    "micro_batch_size", "sequence_length", "accumulation_steps", "eval_batch_size",
    "eval_accumulation_steps", "lora_rank", "world_size",
)  # fmt: skip
_AS_READ = ("attention", "loss", "allocator", "double_quant")


def told(settings: Mapping[str, object], program: FormatName | None) -> PartialConfig:
    """What settings decide; in a log, any program may have printed them (`program` is None)."""
    partial = partial_of(settings, program)
    values = partial.values
    method = _method(values)
    keys: dict[str, object] = {key: values.get(key) for key in _AS_READ}
    keys |= {key: _count(values.get(key) or partial.beside.get(key)) or None for key in _SIZES}
    targets, quantization = values.get("lora_targets"), values.get("quantization")
    by_name = "nf4" if _IN_4_BITS.search(str(values.get("model") or "")) else None
    # An optimizer that no rung has: not knowing its states is better than assuming AdamW's.
    unknown = str(partial.not_taken.get("optimizer") or "").strip().rpartition(".")[2].lower()
    keys |= {
        "model": _named(values.get("model")),
        "method": method.get("method"),
        "quantization": method.get("quantization")
        or (by_name if quantization in (None, "none") else quantization),
        "lora_targets": targets if roles_of(targets) else None,
        "optimizer": values.get("optimizer") or unknown or None,
        "activation_checkpointing": _checkpointing(values),
        "packing": _packing(values),
        "workers": _count(partial.beside.get("workers")),
    }
    keys |= _precision(partial, method, program)
    keys |= _engine(partial)
    return picked(keys, keys)


def _method(values: PartialConfig) -> RungKeys:
    """The method and its quantization; empty if nothing tells them."""
    given = values.copy()
    bits = given.get("bits_4") or given.get("bits_8")
    said = {"method", "method_of_first", "use_peft"} & set(given)
    if not said and not bits and not given.get("lora_rank"):
        return {}
    if "method_of_first" in given:
        given.setdefault("method", given["method_of_first"])
    if not said:
        given["use_peft"] = True
    method = method_of(given)
    if given.get("method") == "qlora" and method["method"] == "lora":
        method["method"] = "qlora"  # the other line, which says how, may not be shown
    return method


def _precision(partial: Partial, method: RungKeys, program: FormatName | None) -> dict[str, object]:
    """The dtypes of the weights and of autocast. A launcher may turn on what a switch leaves off,
    so only its own word means that there is no autocast.
    """
    values = partial.values
    pure = bool(values.get("pure_bf16"))
    row = BY_NAME.get((recognize({"pure_bf16": True}) if pure else program) or "")
    on = pure or values.get("mixed_bfloat16") or values.get("mixed_float16")
    decided = bool(on) or (row is not None and not row.autocasts)
    weights, mixed = dtypes_of(values, method, row if decided else None, values)
    launcher = partial.names.get("mixed_bfloat16", "").rpartition(".")[2] == _LAUNCHER
    return {
        "weights_dtype": None if weights == "auto" else weights,
        "autocast_dtype": mixed if decided or launcher else values.get("autocast_dtype"),
    }


def _engine(partial: Partial) -> dict[str, object]:
    """How the training is sharded, and what it moves to the host."""
    values, left = partial.values, partial.not_taken
    sharding = str(values.get("sharding") or "")
    stage = values.get("zero_stage")
    if stage is None and sharding.startswith("zero"):
        stage = int(sharding[-1])
    if stage is None:  # in the name of a file such as `ds_z3_config.json`
        name = str(values.get("deepspeed_file") or "").lower()
        named = re.search(r"z(?:ero)?[-_]?(?:stage)?[-_]?([0123])", name)
        stage = int(named[1]) if named else None
    if not sharding and (values.get("fsdp") or "fsdp_strategy" in values or "fsdp" in left):
        sharding = fsdp_sharding(values)
    optimizer, parameters = (
        True if str(left.get(key, "")).strip().lower() == _NVME else values.get(key)
        for key in ("zero_offload_optimizer", "zero_offload_parameters")
    )
    if stage is not None:
        sharding = f"zero{stage}" if stage else "none"
    if parameters is None:
        parameters = values.get("fsdp_offload")
    silent = optimizer is None and parameters is None
    moved = "parameters" if parameters else "optimizer" if optimizer else None if silent else "none"
    return {
        "sharding": sharding or None,
        "zero_stage": stage,
        "offload": values.get("offload") or moved,
    }


def _checkpointing(values: PartialConfig) -> str | None:
    if values.get("activation_checkpointing") is not None:
        return values["activation_checkpointing"]
    said = [values.get(key) for key in ("checkpointing", "fsdp_checkpointing") if key in values]
    return ("full" if any(said) else "none") if said else None


def _packing(values: PartialConfig) -> str | None:
    if "packing" in values:
        return values["packing"]
    packing = values.get("trl_packing")
    return None if packing is None else "packed" if packing else "none"


def _count(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < _LARGEST else None


def _named(value: object) -> str | None:
    text = str(value or "").strip()
    return None if text.lower() in ("", "auto", "none") else text


def roles_of(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The roles in `ROLES` of the linear layers that have adapters, from the names of modules."""
    if isinstance(value, str):
        return {"all-linear": ROLES, "attention": ROLES[:4]}.get(value)
    names = value or ()
    roles = {role for name in names for role in ROLES_OF.get(str(name).rpartition(".")[2], ())}
    return tuple(role for role in ROLES if role in roles) or None
