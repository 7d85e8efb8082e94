"""Asks each peer about each run: a part of `peers.py` that runs in an interpreter with the tools.

Reads a list of questions on stdin, writes {tool: {"answers": [[id, metric, bytes or null,
verdicts]], "silent": {reason: count}}} to stdout. A question names devices by their bytes, and
`verdicts` has [fits, in doubt] of each, by the tool's own rule; null for a tool without one. Takes
a folder for a Hugging Face cache that holds nothing but the configurations. Uses the standard
library, and accelerate, transformers and torch where they are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

Question = dict[str, Any]
Verdict = tuple[bool, bool]  # whether it fits, whether the tool says that it is close
MIB, GIB = 1 << 20, 1 << 30
_REVISION = "0" * 40
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class SilentError(Exception):
    """The tool has no answer; the message says why."""


def main() -> None:
    """Ask everyone everything."""
    folder = Path(sys.argv[1])
    questions: list[Question] = json.load(sys.stdin)
    for question in questions:
        fill_cache(folder, question)
    os.environ.update(HF_HOME=str(folder), HF_HUB_OFFLINE="1")
    told = {}
    for package, (ask, judge) in PEERS.items():
        try:
            name = f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            told[package] = all_silent(questions, f"not installed: pip install {package}")
            continue
        told[name] = answers_of(ask, judge, questions)
    json.dump(told, sys.stdout)


def fill_cache(folder: Path, question: Question) -> None:
    """The configuration where the hub's client looks for a model that was fetched before."""
    repository = folder / "hub" / f"models--{question['model_id'].replace('/', '--')}"
    snapshot = repository / "snapshots" / _REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    (snapshot / "config.json").write_text(json.dumps(question["model_config"]))
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(_REVISION)


def answers_of(
    ask: Callable[[Question], int],
    judge: Callable[[Question, int], Verdict] | None,
    questions: list[Question],
) -> dict[str, Any]:
    """What a tool says to all questions."""
    answers: list[tuple[str, str, int | None, list[Verdict] | None]] = []
    silent: dict[str, int] = {}
    for question in questions:
        size: int | None = None
        verdicts = None
        try:
            size = ask(question)
            if judge is not None:
                verdicts = [judge(question, device) for device in question["device_bytes"]]
        except Exception as error:  # noqa: BLE001 - whatever a tool does, the others are asked
            size, reason = None, str(error)[:160] or type(error).__name__
            silent[reason] = silent.get(reason, 0) + 1
        answers.append((question["id"], question["metric"], size, verdicts))
    return {"answers": answers, "silent": silent}


def all_silent(questions: list[Question], reason: str) -> dict[str, Any]:
    """A tool that could not be asked."""
    answers = [(question["id"], question["metric"], None, None) for question in questions]
    return {"answers": answers, "silent": {reason: len(questions)}}


def ask_accelerate(question: Question) -> int:
    """`accelerate estimate-memory`, column "Training using Adam", for the dtype of the weights.

    It knows full training only. Its own functions are called, because the command asks the hub for
    every model; the model is built as it builds it (commands/estimate.py `create_empty_model`).
    """
    from accelerate.commands.estimate import estimate_training_usage

    if question["method"] == "qlora":
        raise SilentError("it shows N/A for training in int4")
    dtype = "float32" if question["weights_dtype"] == "float32" else "float16"
    size = _size_in_fp32(json.dumps(question["model_config"]))
    return int(max(estimate_training_usage(size, dtype).values()))


@cache
def _size_in_fp32(config: str) -> int:
    import torch
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    fields = json.loads(config)
    with init_empty_weights():
        model = AutoModel.from_config(
            AutoConfig.for_model(fields.pop("model_type"), **fields), dtype=torch.float32
        )
    return int(calculate_maximum_sizes(model)[0])


def ask_fitcheck(question: Question) -> int:
    """`fitcheck MODEL --json`: its total, without its overhead where the allocator was read."""
    memory = _fitcheck(question, 1 << 40)["memory_mib"]
    beside = memory["overhead"] if question["metric"] == "allocated" else 0
    return round((memory["total"] - beside) * MIB)


def judge_fitcheck(question: Question, device: int) -> Verdict:
    """Its verdict: "safe", "uncertain" (less than a fifth is left) or "does_not_fit".

    It lets 95 % of a device be used. An uncertain run ends with the exit code of one that does not
    fit, and its JSON says that it fits: it counts as fitting and in doubt.
    """
    verdict = _fitcheck(question, device)["verdict"]
    return verdict["fits"], verdict["status"] == "uncertain"


def _fitcheck(question: Question, device: int) -> Any:
    full, qlora = question["method"] == "full", question["method"] == "qlora"
    # States have the dtype of what is trained; adapters are of fp32 under peft.
    states = "bf16" if full and question["weights_dtype"] != "float32" else "fp32"
    eight_bit = "8bit" in question["optimizer"]
    return _json_of(
        *("fitcheck", question["model_id"], "--json", "--vram-mib", str(device // MIB)),
        *("--precision", _SHORT[question["weights_dtype"]]),
        *("--batch-size", str(question["micro_batch_size"])),
        *("--seq-len", str(question["sequence_length"])),
        *("--optimizer", "adam8bit" if eight_bit else "adamw"),
        *(() if eight_bit else ("--optimizer-dtype", states)),
        *(("--no-lora",) if full else ("--lora-r", str(question["lora_rank"]))),
        *(() if full else ("--lora-targets", ",".join(question["lora_targets"]))),
        *(("--grad-checkpoint",) if question["checkpointing"] else ()),
        *(("--flash-attn",) if question["attention"] != "eager" else ()),
        *(("--quant", question["quantization"]) if qlora else ()),
        *(("--double-quant",) if qlora and question["double_quant"] else ()),
    )


def ask_canifinetune(question: Question) -> int:
    """`canifinetune estimate --json`: its total without the safety margin it keeps.

    Its overhead of CUDA is left out as well where the allocator's own figure was read.
    """
    memory = _canifinetune(question, question["measured_bytes"])["memory"]
    beside = memory["cuda_overhead_gb"] if question["metric"] == "allocated" else 0.0
    return round((memory["total_estimated_gb"] - memory["safety_margin_gb"] - beside) * GIB)


def judge_canifinetune(question: Question, device: int) -> Verdict:
    """Its "feasible", with its safety margin: "yes" to 85 % of the device, "marginal" to 97 %."""
    feasible = _canifinetune(question, device)["feasible"]
    return feasible != "no", feasible == "marginal"


def _canifinetune(question: Question, device: int) -> Any:
    checkpointing = "" if question["checkpointing"] else "no-"
    return _json_of(
        *("canifinetune", "estimate", "--model", question["model_id"], "--offline", "--json"),
        *("--gpu-vram-gb", str(device / GIB)),
        *("--method", question["method"], "--base-dtype", _SHORT[question["weights_dtype"]]),
        *("--seq-len", str(question["sequence_length"])),
        *("--micro-batch-size", str(question["micro_batch_size"])),
        *("--lora-rank", str(question["lora_rank"]), "--target-scope", _scope(question)),
        *("--quantization", _quantization(question)),
        *("--optimizer", "adamw_8bit" if "8bit" in question["optimizer"] else "adamw_torch"),
        *("--attn", question["attention"], f"--{checkpointing}gradient-checkpointing"),
    )


def _quantization(question: Question) -> str:
    if question["quantization"] == "int8":
        return "int8"
    return "nf4_double_quant" if question["double_quant"] else "nf4"


def _scope(question: Question) -> str:
    """The nearest of its three scopes: "conservative" is queries and values."""
    return "conservative" if question["lora_targets"] == ["q_proj", "v_proj"] else "attention"


def _json_of(name: str, *arguments: str) -> Any:
    """What a command prints; exit code 1 is fitcheck's word for "does not fit"."""
    program = str(Path(sys.executable).with_name(name))
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        lines = [line for line in ended.stderr.splitlines() if "rror" in line] or ["no JSON"]
        raise SilentError(lines[-1][:160]) from None


PEERS: dict[str, tuple[Callable[[Question], int], Callable[[Question, int], Verdict] | None]] = {
    "accelerate": (ask_accelerate, None),
    "fitcheck-llm": (ask_fitcheck, judge_fitcheck),
    "canifinetune": (ask_canifinetune, judge_canifinetune),
}

if __name__ == "__main__":
    main()
