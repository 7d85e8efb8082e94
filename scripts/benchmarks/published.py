"""The published measurements of tests/data/published_memory.json as cases.

Each row is expressed as it ran: what a rung can say by a rung, what old libraries did differently
by the adaptations of `old_code`, and a row with kernels that no adaptation gives is left out with
the reason. A row has the settings of the run, `measured_bytes` with its `metric`, the `source` it
was read from, and in `trust_reason` and `note` what was stated there and what had to be assumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cases import Case, Metric, Reading

from oomdoctor.records.config import KbitPrepare, TrainConfig
from oomdoctor.records.model import ModelSpec, Task

FILE = Path(__file__).parents[2] / "tests" / "data" / "published_memory.json"
MIB = 1 << 20
_TASKS: dict[str, Task] = {
    "causal_lm": "causal-lm",
    "sequence_classification": "sequence-classification",
}
_OPTIMIZERS = {
    "adamw_hf": "adamw_torch",  # with the adaptation "single-tensor AdamW"
}
_KBIT_PREPARE: dict[str, KbitPrepare] = {"trl_norms_fp32": "norms", "none": "none"}
# Stated on the page of the BERT runs: nvidia-smi's reading before the model was loaded.
_BERT_CONTEXT = 1343 * MIB


def published_cases(path: Path = FILE) -> Iterator[Case]:
    """Every row of the file, in its order."""
    for row in json.loads(path.read_text()):
        beside = _BERT_CONTEXT if row["metric"] == "nvidia_smi" else 0
        yield Case(
            id=row["id"],
            origin="published",
            stack=row["stack"],
            model=_model(row),
            config=_config(row),
            gpu=row["gpu"],
            readings=(Reading(_metric(row), row["measured_bytes"], beside),),
            adaptations=tuple(_adaptations(row)),
            not_expressible=_not_expressible(row),
        )


def _metric(row: dict[str, Any]) -> Metric:
    metrics: dict[str, Metric] = {"nvidia_smi": "device"}
    return metrics.get(row["metric"], row["metric"])


def _model(row: dict[str, Any]) -> ModelSpec:
    task = _TASKS[row["task"]]
    config = dict(row["config"])
    if task == "sequence-classification":
        config["architectures"] = ["BertForSequenceClassification"]
    (architecture,) = config["architectures"]
    return ModelSpec(row["model_id"], "catalogue", architecture, config["model_type"], task, config)


def _config(row: dict[str, Any]) -> TrainConfig:
    lora = {}
    if row["lora_r"] is not None:
        lora = {
            "lora_rank": row["lora_r"],
            "lora_alpha": row["lora_alpha"],
            "lora_dropout": row["lora_dropout"],
            "lora_targets": tuple(row["lora_targets"]),
        }
    quantized = {}
    if row["quant"] is not None and row["quant"]["backend"] == "bnb":
        quantized = {
            "quantization": row["quant"]["type"],
            "double_quant": row["quant"]["double_quant"],
            "kbit_prepare": _KBIT_PREPARE[row["kbit_prepare"].split()[0]],
        }
    return TrainConfig(
        method=row["method"],
        weights_dtype=row["weights_dtype"],
        autocast_dtype=row["autocast"] or "none",
        optimizer=_OPTIMIZERS.get(row["optimizer"], row["optimizer"]),
        attention=row["attn"],
        activation_checkpointing="full" if row["grad_ckpt"] else "none",
        micro_batch_size=row["micro_batch"],
        sequence_length=row["seq_len"],
        effective_batch_size=row["micro_batch"] * _micro_steps(row),
        **lora,
        **quantized,
    )


def _micro_steps(row: dict[str, Any]) -> int:
    """torch below 2 keeps gradients between steps: a step finds them as the second micro-step does.

    `Module.zero_grad` fills with zeros there (`set_to_none` became the default in torch 2.0).
    """
    keeps_gradients = row["stack"] == "hf_old"
    return max(row["grad_accum"], 2 if keeps_gradients else 1)


def _adaptations(row: dict[str, Any]) -> Iterator[str]:
    stack = row["stack"]
    if stack == "fms" or row["model_id"] == "01-ai/Yi-34B-Chat":
        yield "shifted logits"
    if row["config"]["model_type"] == "mixtral":
        yield "linear experts"
    if stack == "hf_old":
        yield "BERT 4.15 on torch 1.10"
        if row["optimizer"] == "adamw_hf":
            yield "single-tensor AdamW"
        if row["optimizer"] == "adamw_8bit":
            yield "8-bit states throughout"
    if stack == "torchtune":
        yield "8-bit states throughout"
    if stack == "litgpt":
        yield "lit-gpt"


def _not_expressible(row: dict[str, Any]) -> str | None:
    if row["optimizer"].startswith("torchao"):
        return "states that are tensor subclasses of torchao, which the simulator cannot follow"
    if row["quant"] is not None and row["quant"]["backend"] == "gptq":
        return "GPTQ kernels, whose group size and workspaces are not published"
    return None
