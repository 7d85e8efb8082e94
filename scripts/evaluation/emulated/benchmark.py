"""Further rows of the benchmark that the published rows are from, read from a checkout of it.

The checkout is of foundation-model-stack/fms-acceleration. Its tables have runs with fused kernels,
Liger's loss, GPTQ and Llama models, in the same settings. What was measured is read from there at
each run; it is not kept here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oomdoctor.system.catalogue import find_model

TABLE = Path("scripts", "benchmarks", "refs", "a100_80gb.csv")
LIGER_TABLE = TABLE.with_name("a100_80gb_liger.csv")  # with older libraries: transformers 4.45
MIB_PER_GIB = 1024
_MODELS = {  # as the benchmark names it: a short name, and the model with these shapes
    "mistralai/Mistral-7B-v0.1": ("mistral7b", "mistralai/Mistral-7B-v0.1"),
    "TheBloke/Mistral-7B-v0.1-GPTQ": ("mistral7b", "mistralai/Mistral-7B-v0.1"),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ": ("mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "NousResearch/Llama-2-70b-hf": ("llama70b", "meta-llama/Llama-2-70b-hf"),
    "TheBloke/Llama-2-70B-GPTQ": ("llama70b", "meta-llama/Llama-2-70b-hf"),
    "meta-llama/Meta-Llama-3-8B": ("llama3-8b", "meta-llama/Meta-Llama-3-8B"),
    "TechxGenus/Meta-Llama-3-8B-GPTQ": ("llama3-8b", "meta-llama/Meta-Llama-3-8B"),
}
_QUANTIZED = {  # by the plugins: a short name, the kind, and whether TRL upcasts what is left
    "baseline-peft-bnb": ("qlora-base", "nf4", True),
    "accelerated-peft-bnb": ("qlora-acc", "nf4", False),
    "accelerated-peft-autogptq": ("gptqlora", "gptq", False),
}


def further_rows(checkout: Path, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of one GPU that ended, but those that are published rows already."""
    lines = {_line(row) for row in known}
    for table in (TABLE, LIGER_TABLE):
        file = checkout / table
        if not file.exists():
            raise SystemExit(f"error: {checkout} is no checkout of fms-acceleration: no {table}")
        with file.open(newline="", encoding="utf-8") as text:
            for number, entry in enumerate(csv.DictReader(text), 2):
                source = f"{table} line {number}"
                ended = entry["num_gpus"] == "1" and entry["mem_peak_torch_mem_alloc_in_bytes"]
                if ended and source not in lines and entry["model_name_or_path"] in _MODELS:
                    yield _row(entry, source, older=table == LIGER_TABLE)


def _line(row: dict[str, Any]) -> str | None:
    """The line of a table that a published row is from."""
    found = re.search(rf"{re.escape(str(TABLE))} line \d+", row["source"])
    return found[0] if found else None


def _row(entry: dict[str, str], source: str, *, older: bool) -> dict[str, Any]:
    """An entry of a table in the form of the published rows."""
    short, model = _MODELS[entry["model_name_or_path"]]
    without_loss = entry["framework_config"].removesuffix("-liger")
    plugins = without_loss.removesuffix("-foak").replace("foak-fast-kernels", "none")
    features = ["foak"] if plugins != without_loss else []
    if without_loss != entry["framework_config"]:
        features.append("liger")
    method = entry["peft_method"] or "full"
    name, kind, upcast = _QUANTIZED.get(plugins, (method, None, False))
    found = find_model(model)
    assert found is not None, f"no model {model}"
    batch = int(entry["per_device_train_batch_size"])
    words = ["fms445" if older else "fms", short, name, *features, "1g", f"bs{batch}"]
    return {
        "id": "-".join(words),
        "stack": "fms",
        "older": older,
        "config": dict(found.config),
        "gpu": "NVIDIA A100 80GB",
        "method": "qlora" if kind else method,
        "quant": {"type": kind} if kind else None,
        "kbit_prepare": None if upcast or not kind else "none",
        "features": features,
        "weights_dtype": entry["torch_dtype"],
        "autocast": "bfloat16" if entry["bf16"] else "float16" if entry["fp16"] else None,
        "lora_r": int(float(entry["r"] or 0)),
        "lora_alpha": int(float(entry["lora_alpha"] or 0)),
        "lora_dropout": float(entry["lora_dropout"] or 0),
        "lora_targets": entry["target_modules"].split(),
        "seq_len": 4096,
        "micro_batch": batch,
        "measured_bytes": int(float(entry["mem_peak_torch_mem_alloc_in_bytes"])),
        "measured_also": [_nvidia_smi(entry)],
        "source": f"github:foundation-model-stack/fms-acceleration {source}",
    }


def _nvidia_smi(entry: dict[str, str]) -> dict[str, Any]:
    mib = int(float(entry["mem_nvidia_mem_reserved"]))
    return {"metric": "nvidia_smi", "peak_gb": mib / MIB_PER_GIB, "unit": "GiB"}
