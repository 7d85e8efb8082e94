"""Example reports of `explain` that cover everything the page can say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from oomdoctor.records.report.diagnosis import Cause, Diagnosis, Frame, Numbers, Remedy, Tensor
from oomdoctor.records.report.report import Fault, Report, Tool, bare_report
from oomdoctor.records.report.warnings import not_read, quoted
from oomdoctor.units import GIB, MIB

_MESSAGE = (
    "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 1 has a total capacity of 80.00 GiB of "
    "which 4.00 GiB is free. Process 4242 has 16.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 60.00 GiB memory in use. Of the allocated memory 55.00 GiB is "
    "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)
GPU = Diagnosis(
    source="logs/rank1.out",
    is_oom=True,
    resource="gpu",
    dialect="cuda_caching_allocator",
    phase="loss",
    rank=1,
    numbers=Numbers(
        requested_bytes=8 * GIB,
        capacity_bytes=80 * GIB,
        free_bytes=4 * GIB,
        process_bytes=60 * GIB,
        allocated_bytes=55 * GIB,
        reserved_unallocated_bytes=GIB,
        other_processes_bytes=16 * GIB,
    ),
    where=Frame("/home/me/train.py", 12, "main", "loss = model(**batch).loss"),
    tensor=Tensor(
        8 * GIB, (4, 4096, 131072), "fp32 logits", "float32", "high",
        "8.00 GiB = 4 x 4096 x 131072 x 4 bytes: fp32 logits",
    ),
    causes=(
        Cause("logits", "high", (_MESSAGE, "logits = logits.float()"),
              "the logits over the whole vocabulary did not fit"),
        Cause("other_process", "medium", ("Process 4242 has 16.00 GiB memory in use",),
              "other processes hold 16.0 GiB of the GPU"),
        Cause("activations", "low", (), "they grow with the batch"),
    ),
    remedies=(
        Remedy("Compute the loss in chunks (fused linear cross-entropy)", 28 * GIB, "arithmetic",
               {"transformers": "TrainingArguments(use_liger_kernel=True)",
                "trl": "SFTConfig(use_liger_kernel=True)",
                "pytorch": "loss = LigerFusedLinearCrossEntropyLoss()(head, hidden, labels)"},
               "logits 28.0 GiB -> 0 B", "usually faster too"),
        Remedy("Stop the other process that is using the GPU", 16 * GIB, "measured",
               {"shell": "nvidia-smi; fuser -v /dev/nvidia*; kill PID"}, None,
               "held by other processes"),
        Remedy("Use a smaller micro-batch (now 4) and accumulate more", 2 * GIB, "predicted",
               {"transformers": "TrainingArguments(per_device_train_batch_size=2)",
                "accelerate": "Accelerator(gradient_accumulation_steps=2)",
                "pytorch": "DataLoader(..., batch_size=2)"}),
        Remedy("Load the weights in bfloat16", 200 * GIB, "arithmetic", {},
               "weights 256 GiB -> 56.0 GiB"),
        Remedy("Turn on activation checkpointing", None, "rule",
               {"transformers": "TrainingArguments(gradient_checkpointing=True)"},
               None, "about a third slower"),
        Remedy("Use a GPU with more memory", None, "rule", {}, None, "the last resort"),
    ),
    message=_MESSAGE,
    verdict="out of GPU memory while computing the loss at step 12 on rank 1: tried to allocate "
    "8.00 GiB, 4.00 GiB more than was available",
    line_number=907,
    step=12,
    tensors=(
        Tensor(8 * GIB, (4, 4096, 131072), "fp32 logits", "float32", "high",
               "8.00 GiB = 4 x 4096 x 131072 x 4 bytes: fp32 logits"),
        Tensor(8 * GIB, (4, 4095, 131072), "fp32 shifted logits", "float32", "medium",
               "8.00 GiB = 4 x 4095 x 131072 x 4 bytes: fp32 shifted logits"),
    ),
    oddities=("free memory and own use add up to 24.0 MiB more than the GPU has",),
    evidence=(_MESSAGE,),
    needs=("weights 8,000,000,000 x 2 bytes = 14.9 GiB",
           "gradients 8,000,000,000 x 2 bytes = 14.9 GiB",
           "total: at least 29.8 GiB of 80.0 GiB"),
    assumed=("sizes of acme/model-8b (named by the log)", "sdpa attention"),
    framework="transformers",
)  # fmt: skip
HOST = Diagnosis(
    source="4711",
    is_oom=True,
    resource="host",
    dialect="slurm",
    phase="unknown",
    rank=None,
    numbers=Numbers(),
    where=None,
    tensor=None,
    causes=(
        Cause("host_memory", "high", ("sacct: 4711 State=OUT_OF_MEMORY ExitCode=0:125",),
              "the job exceeded the host memory that it requested from the scheduler"),
    ),
    remedies=(
        Remedy("Request more host memory", None, "rule", {"slurm": "#SBATCH --mem=SIZE"}, None,
               "as much as the largest process needs, for each process"),
    ),
    verdict="out of host memory",
    line_number=1,
)  # fmt: skip
LIMITED = replace(
    GPU,
    source="capped.log",
    phase="backward",
    rank=None,
    numbers=Numbers(
        requested_bytes=20 * MIB,
        allocated_bytes=9 * GIB,
        allowed_bytes=10 * GIB,
        private_pools_bytes=GIB,
    ),
    tensor=None,
    tensors=(),
    needs=(),
    assumed=(),
    where=Frame("<stdin>", None, "<module>", None),
    causes=(Cause("memory_fraction", "high", (), "the process may use only a part of the GPU"),),
    verdict="out of GPU memory in the backward pass: tried to allocate 20.0 MiB; the program "
    "caught the error and the run continued",
    survived=True,
)
NOT_MEMORY = replace(
    HOST,
    source="eval.log",
    is_oom=False,
    resource="none",
    dialect="not_oom",
    causes=(),
    remedies=(),
    look_alike="device_mismatch",
    short_answer="move the inputs to the model's device: batch.to(model.device)",
    verdict="not a memory failure: tensors are on different devices",
    evidence=("RuntimeError: Expected all tensors to be on the same device",),
)
NOTHING = replace(
    NOT_MEMORY, source="fine.log", look_alike=None, short_answer=None, evidence=(),
    verdict="no memory failure found",
)  # fmt: skip


def explained(*found: Diagnosis, **changes: Any) -> Report:
    """The report of `explain` with these answers."""
    bare = bare_report("explain", "ok", 0, datetime(2030, 1, 1, tzinfo=UTC), 0.1)
    return replace(bare, tool=Tool("oomdoctor", "1"), diagnoses=found, **changes)


def _gpu() -> Report:
    also = replace(
        GPU,
        line_number=1304,
        verdict="out of GPU memory in the backward pass: tried to allocate 1.00 GiB",
    )
    return explained(GPU, also, next_commands=("oomdoctor explain logs/rank1.out --verbose",))


def _host() -> Report:
    job = (
        "job 4711 of me on gpu01: OUT_OF_MEMORY after 00:12:44 of 1-00:00:00, exit code 0:125; "
        "host memory: 63.8 GiB at the highest sample of a task, 64.0 GiB asked for"
    )
    lost = "no output file of job 4711 was found; looked for /home/me/slurm-4711.out"
    return explained(HOST, warnings=tuple(quoted("slurm", (job, lost))))


def _table() -> Report:
    return explained(
        GPU, HOST, LIMITED, NOT_MEMORY, NOTHING,
        next_commands=("oomdoctor explain logs/rank1.out",),
        warnings=(not_read("log_unreadable", "logs/old is a folder"),),
    )  # fmt: skip


def _error() -> Report:
    fault = Fault("usage", "nowhere.txt: no such file", "run `oomdoctor explain --help`")
    return explained(status="error", exit_code=2, errors=(fault,))


EXPLAINED: dict[str, Callable[[], Report]] = {"explain-gpu": _gpu, "explain-table": _table}
# Pages of a few lines, which no width changes.
SHORT: dict[str, Callable[[], Report]] = {
    "explain-host": _host,
    "explain-limited": lambda: explained(LIMITED, status="no", exit_code=3),
    "explain-not-memory": lambda: explained(NOT_MEMORY, status="no", exit_code=3),
    "explain-nothing": lambda: explained(NOTHING, status="no", exit_code=3),
    "explain-error": _error,
}
