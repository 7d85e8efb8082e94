"""What DeepSpeed really allocates on the emulated GPU, and what the same step needs alone.

    python scripts/evaluation/zero_memory.py --python .venv-cuda/bin/python --write FILE
    python scripts/evaluation/zero_memory.py --python .venv-cuda/bin/python --only z3

Each row is a training by transformers' Trainer and DeepSpeed, with all ranks or with one that
stands for all. FILE is `tests/data/emulated/zero.json`, with which the model of DeepSpeed's buffers
(`oomdoctor/analysis/memory/zero`) is tested. The interpreter needs deepspeed. A row takes half a
minute to two minutes. Rows that FILE has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMEOUT_S = 900
SMALL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
LARGE = SMALL | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
}
# Llama 3's vocabulary and more layers: 3.6e9 parameters.
WIDE = LARGE | {
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "vocab_size": 128256,
}
MODELS = {"small": SMALL, "large": LARGE, "wide": WIDE}
RUNG = {
    "micro_batch_size": 1,
    "accumulation": 2,
    "bf16": True,
    "weights_dtype": "bfloat16",
    "optimizer": "adamw_torch_fused",
    "checkpointing": True,
    "length": 1024,
}
ON_HOST = {"device": "cpu", "pin_memory": True}
AUTO = {
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}
# (model, what differs from RUNG, DeepSpeed's zero_optimization, GPUs, whether all ranks run)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int, bool]] = {
    "z1-2": ("large", {}, {"stage": 1}, 2, True),
    "z2-2": ("large", {}, {"stage": 2}, 2, True),
    "z3-2": ("large", {}, {"stage": 3}, 2, True),
    "z1-single-2": ("large", {"accumulation": 1}, {"stage": 1}, 2, False),
    "z2-single-2": ("large", {"accumulation": 1}, {"stage": 2}, 2, True),
    "z2-foreach-2": ("large", {"optimizer": "adamw_torch"}, {"stage": 2}, 2, False),
    "z2-auto-4": ("large", {}, {"stage": 2, "reduce_bucket_size": "auto"}, 4, True),
    "z3-auto-4": ("large", {}, {"stage": 3, **AUTO}, 4, False),
    "z3-stored-2": ("large", {"checkpointing": False}, {"stage": 3}, 2, False),
    "z2-long-8": ("large", {"length": 8192, "micro_batch_size": 2}, {"stage": 2}, 8, False),
    "z2-lora-2": ("large", {"lora_rank": 16}, {"stage": 2}, 2, False),
    "z3-lora-2": ("large", {"lora_rank": 16}, {"stage": 3}, 2, False),
    "z3-lora-fp32-2": ("large", {"lora_rank": 128, "adapters": "float32"}, {"stage": 3}, 2, False),
    "z1-host-2": ("small", {}, {"stage": 1, "offload_optimizer": ON_HOST}, 2, False),
    "z2-host-2": ("small", {}, {"stage": 2, "offload_optimizer": ON_HOST}, 2, False),
    "z3-host-2": ("small", {}, {"stage": 3, "offload_optimizer": ON_HOST}, 2, False),
    "z3-both-2": (
        "small",
        {},
        {"stage": 3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST},
        2,
        False,
    ),
    "z1-64": ("wide", {}, {"stage": 1}, 64, False),
    "z2-64": ("wide", {}, {"stage": 2}, 64, False),
    "z3-64": ("wide", {}, {"stage": 3}, 64, False),
    "z3-8": ("wide", {"length": 4096}, {"stage": 3}, 8, False),
    "z3-fp32-4": ("small", {"bf16": False, "weights_dtype": "float32"}, {"stage": 3}, 4, False),
    "z2-fp32-4": ("small", {"bf16": False, "weights_dtype": "float32"}, {"stage": 2}, 4, False),
}


def main() -> int:
    options = _options()
    kept: dict[str, Any] = {"cases": {}}
    if options.write and options.write.exists():
        kept = json.loads(options.write.read_text(encoding="utf-8"))
    kept["versions"] = _versions(options.python)
    alone: dict[str, Any] = {}
    for name in CASES:
        if not any(word in name for word in options.only) or name in kept["cases"]:
            continue
        kept["cases"][name] = row = _row(name, options.python, alone)
        print(name, row["ranks"][0]["phases"] if row["ranks"] else row, flush=True)
        if options.write:
            options.write.write_text(_text(kept), encoding="utf-8")
    return 0


def _text(kept: dict[str, Any]) -> str:
    """JSON with a case a line."""
    cases = ",\n".join(f"{json.dumps(k)}: {json.dumps(case)}" for k, case in kept["cases"].items())
    versions = json.dumps(kept["versions"])
    return f'{{"versions": {versions}, "cases": {{\n{cases}\n}}}}\n'


def _row(name: str, python: Path, alone: dict[str, Any]) -> dict[str, Any]:
    model, changes, zero, gpus, every = CASES[name]
    spec = {"model": MODELS[model], "rung": RUNG | changes, "zero": zero}
    key = json.dumps([model, changes])
    if key not in alone:
        alone[key] = _run({**spec, "zero": None}, python, gpus=1, every=True)[0]
    ranks = _run(spec, python, gpus=gpus, every=every)
    return {
        "model": MODELS[model],
        "rung": RUNG | changes,
        "zero": zero,
        "gpus": gpus,
        "alone": alone[key],
        "ranks": ranks,
    }


def _run(spec: dict[str, Any], python: Path, *, gpus: int, every: bool) -> list[dict[str, Any]]:
    """What each rank that ran wrote."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "spec.json"), Path(folder, "out")
        file.write_text(json.dumps(spec), encoding="utf-8")
        script = ("python", str(HERE / "emulated" / "zero_training.py"), str(file), str(out))
        ranks: tuple[str, ...] = ()
        if spec["zero"] is not None:
            script = ("torchrun", f"--nproc-per-node={gpus}", *script[1:])
            ranks = () if every else ("--ranks", "1")
        command = ("-m", "oomdoctor", "run", "--emulate", f"{gpus}xH100 80GB", *ranks)
        done = subprocess.run(
            (sys.executable, *command, "--python", str(python), "--", *script),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        found = sorted(Path(folder).glob("out.*.json"), key=lambda path: int(path.suffixes[-2][1:]))
        if not found:
            raise SystemExit(
                f"error: nothing was measured\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def _versions(python: Path) -> dict[str, str]:
    names = ("torch", "transformers", "accelerate", "deepspeed")
    code = "import importlib.metadata as m, json; print(json.dumps([m.version(n) for n in %r]))"
    done = subprocess.run(
        (str(python), "-c", code % (names,)), capture_output=True, text=True, check=True
    )
    return dict(zip(names, json.loads(done.stdout), strict=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], help="part of a row's name")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    options.only = options.only or [""]
    return options


if __name__ == "__main__":
    sys.exit(main())
