"""Regenerates oomdoctor/data/models.json and gpus.json from a folder with the collected facts.

    python scripts/build_catalogue.py FACTS_DIR

Takes models.json and gpus.json of that folder and keeps what oomdoctor can train or look up: the
models of its tasks, every card. image_text_models.py has further models, and recent_models.json
those of 2025 and 2026, each with its `source`: the public file that has the config.json or its
values, as repository@commit:path. Standard library only.
tests/worker/training/test_catalogue_builds.py builds each model and checks the counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from card_hardware import HARDWARE
from image_text_models import MODELS

RECENT = Path(__file__).with_name("recent_models.json")
DATA = Path(__file__).resolve().parent.parent / "oomdoctor" / "data"
GIB = 1024**3
MIB = 1024**2
KIB = 1024
# AutoModel stands for bare encoders, which `system.tasks` gives a head.
AUTO_CLASSES = frozenset(
    {
        "AutoModelForCausalLM",
        "AutoModelForMaskedLM",
        "AutoModelForSeq2SeqLM",
        "AutoModelForImageClassification",
        "AutoModelForImageTextToText",
        "AutoModelForSpeechSeq2Seq",
        "AutoModel",
    }
)
# In the published config.json or weights, and not among the facts; the others without a type are of
# before 2022, in float32.
DTYPES = {
    "openai/gpt-oss-20b": "bfloat16",
    "openai/gpt-oss-120b": "bfloat16",
    "openai/whisper-large-v3": "float16",
    "openai/whisper-large-v3-turbo": "float16",
}


def is_kept(facts: Mapping[str, Any]) -> bool:
    """Whether oomdoctor can train the model."""
    return facts["auto_class"] in AUTO_CLASSES


def model_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """One line of models.json."""
    config = dict(facts["config"])
    config.setdefault("architectures", [facts["model_class"]])
    if facts["id"] in DTYPES:
        config.setdefault("torch_dtype", DTYPES[facts["id"]])
    if config["model_type"] == "t5":
        # In every published T5 config.json, and no default of the class: labels cannot be
        # shifted right without it.
        config.setdefault("decoder_start_token_id", 0)
    return {
        "id": facts["id"],
        "config": config,
        "auto_class": facts["auto_class"],
        "parameters": parameter_count(facts),
        "notes": facts["notes"] or "",
        "aliases": facts["same_parameter_shapes"],
        "published_parameters": facts["published_params"],
    }


def parameter_count(facts: Mapping[str, Any]) -> int:
    """Parameters of the model in training, tied weights once.

    The count of the meta device, because published totals also hold buffers, multi-token
    prediction layers or a second copy of a tied head (`notes` has each difference). The exception
    is a model that an earlier transformers built with exactly the published count and the present
    one does not: flan-t5, whose separate head transformers 5 ties.
    """
    published: int | None = facts["published_params"]
    counted: int = facts["params_on_meta"]
    before: int | None = facts["params_on_meta_transformers_4_57_6"]
    if published is not None and before == published != counted:
        return published
    return counted


def gpu_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """One line of gpus.json: the fields of `records.report.GpuFacts`."""
    # PyTorch sees each half of an MI250X as a device of its own.
    devices = 2 if facts["name"] == "AMD Instinct MI250X" else 1
    rates = facts["tflops_dense"]
    names = [facts["device_name"], *facts["aliases"]]
    notes = facts["notes"] or ""
    multiprocessors, l2_kib, bus_bits = hardware(facts)
    if devices > 1:
        notes = "One of the two devices of the card, each with half its memory and rates."
    elif facts["bf16_native"] is False and "bf16" not in notes:
        notes = f"{notes} No native bf16.".strip()
    return {
        "name": facts["name"],
        "aliases": list(dict.fromkeys(name for name in names if name != facts["name"])),
        "vendor": facts["vendor"],
        "architecture": facts["architecture"],
        "compute_capability": facts["compute_capability"],
        "memory_bytes": facts["marketed_memory_gb"] * GIB // devices,
        "total_bytes": scaled(facts["nvidia_smi_total_mib"], MIB),
        "bandwidth_bytes_per_s": rate(facts["memory_bandwidth_gb_s"], 1e9 / devices),
        "fp32_flops": rate(rates["fp32"], 1e12 / devices),
        "tf32_flops": rate(rates["tf32_tensor"], 1e12 / devices),
        "fp16_flops": rate(rates["fp16_tensor"], 1e12 / devices),
        "bf16_flops": rate(rates["bf16_tensor"], 1e12 / devices),
        "fp8_flops": rate(rates["fp8_tensor"], 1e12 / devices),
        "notes": notes,
        "torch_total_bytes": scaled(facts["torch_total_memory_mib_min"], MIB),
        "multiprocessors": multiprocessors,
        "l2_bytes": scaled(l2_kib, KIB),
        "memory_bus_bits": bus_bits,
        "nvlink_bytes_per_s": rate(facts["nvlink_gb_s_bidirectional"], 1e9 / 2),
        "pcie_generation": facts["pcie_generation"],
        "pcie_lanes": facts["pcie_lanes"],
    }


def hardware(facts: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """What card_hardware.py knows. Every NVIDIA card has a row there, so that none is forgotten."""
    if facts["vendor"] != "NVIDIA":
        return (None, None, None)
    return HARDWARE[facts["name"]]


def scaled(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def rate(value: float | None, factor: float) -> float | None:
    """Rounded to a whole number: 165.2 * 1e12 is not exact in binary."""
    return None if value is None else float(round(value * factor))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A JSON list with one entry a line, so that a change shows as one line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{path.name}: {len(rows)}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/build_catalogue.py FACTS_DIR")
    facts = Path(sys.argv[1])
    models = json.loads((facts / "models.json").read_text(encoding="utf-8"))
    gpus = json.loads((facts / "gpus.json").read_text(encoding="utf-8"))
    DATA.mkdir(exist_ok=True)
    recent = json.loads(RECENT.read_text(encoding="utf-8"))
    for row in recent:
        del row["source"]
    rows = [*(model_row(m) for m in models if is_kept(m)), *MODELS, *recent]
    write(DATA / "models.json", rows)
    write(DATA / "gpus.json", [gpu_row(gpu) for gpu in gpus])


if __name__ == "__main__":
    main()
