"""The training configuration of a row of several GPUs, in the words of a rung."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from published.code import NotExpressibleError, Row
from published.config import train_config
from published.many.code import is_fused


def many_config(row: Row) -> TrainConfig:
    """The rung that a row ran.

    Raises:
        NotExpressibleError: a rung cannot say it.
        KeyError: the row lacks a setting.
    """
    config = train_config({**row, **_plain(row)})
    world = int(row["world_size"])
    keys: dict[str, Any] = _sharding(row) | _offload(row)
    keys["world_size"] = world
    keys["effective_batch_size"] = config.effective_batch_size * world
    if "liger_flce" in (row.get("features") or ()) and not is_fused(row):
        keys["loss"] = "liger"
    if config.quantization != "none":
        keys |= {"quant_storage": config.weights_dtype, "kbit_prepare": "none"}
    if row.get("group") == "torchtitan":  # its policy for FSDP 2, and AdamW's default
        keys |= {"autocast_dtype": "bfloat16", "reduce_dtype": "float32"}
        keys["optimizer"] = "adamw_torch"
    config = replace(config, **keys)
    faults = config_faults(config)
    if faults:
        raise NotExpressibleError("; ".join(f"{key} {what}" for key, what in faults))
    return config


def _plain(row: Row) -> dict[str, Any]:
    words = str(row["weights_dtype"]).partition(" (")[0]
    optimizer = {"deepspeed_adamw": "adamw_torch_fused"}.get(row["optimizer"], row["optimizer"])
    return {"weights_dtype": words, "optimizer": optimizer}


def _sharding(row: Row) -> dict[str, Any]:
    told = str(row["sharding"])
    if "context parallel" in told:
        raise NotExpressibleError("context parallel")
    if "ZeRO-" in told:
        return {"sharding": f"zero{told.partition('ZeRO-')[2][0]}"}
    if "NO_SHARD" in told:
        return {"sharding": "ddp"}
    if "FSDP2" in told:
        return {"sharding": "fsdp", "fsdp_version": 2}
    return {"sharding": "fsdp", "fsdp_version": 1}


def _offload(row: Row) -> dict[str, Any]:
    told = row.get("cpu_offload")
    if told is True:
        return {"offload": "parameters"}
    return {"offload": "optimizer"} if told == "optimizer states only" else {}
