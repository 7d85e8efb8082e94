"""Values of a rung's keys that are never supported somewhere, with the reason and what to do.

Only what no installation changes is listed. Missing packages and libraries that are too old are
reported by the worker, which knows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.optimizers import OPTIMIZERS, Library

Where = Literal["anywhere", "simulated", "cpu"]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One row: `key` has one of `values`, or any value but the default where `values` is empty.

    `where` says which runs it holds for: all, simulations (`plan`), or a CPU as the device. The
    reason may use `{value}`. `instead` is what to do. It does not hold for the values of `sharding`
    in `unless`.
    """

    key: str
    values: tuple[str | int, ...]
    where: Where
    reason: str
    instead: str | None = None
    unless: tuple[str, ...] = ()

    def matches(self, value: object) -> bool:
        """Whether a rung with this value of `key` is not supported."""
        return value in self.values if self.values else value != getattr(_PLAIN, self.key)

    def text(self, value: object) -> str:
        """The reason and what to do, for people."""
        reason = self.reason.format(value=value)
        return f"{reason}; {self.instead}" if self.instead else reason


_PLAIN = TrainConfig()


def _of(*libraries: Library) -> tuple[str, ...]:
    return tuple(name for name, row in OPTIMIZERS.items() if row.library in libraries)


_EMULATE = "use probe --emulate, which runs the engine itself"
UNSUPPORTED = (
    Unsupported(
        "sharding",
        ("tensor_parallel", "context_parallel", "pipeline_parallel"),
        "anywhere",
        "{value} splits the model itself, which depends on its code",
        "run your own script on GPUs that are not there: oomdoctor run --emulate 8xH100 -- "
        "torchrun --nproc-per-node 8 train.py",
    ),
    Unsupported(
        "sharding",
        ("zero1", "zero2", "zero3"),
        "cpu",
        "DeepSpeed needs a GPU",
        "use fsdp or ddp on the CPU, or --emulate",
    ),
    Unsupported("fsdp_version", (1,), "cpu", "FSDP 1 needs a GPU", "use fsdp_version = 2"),
    Unsupported(
        "optimizer",
        _of("torch_xla", "torch_npu"),
        "anywhere",
        "{value} runs on XLA or NPU devices only",
        "use adamw_torch_fused",
    ),
    Unsupported(
        "autocast_dtype",
        ("float16",),
        "cpu",
        "float16 autocast uses the gradient scaler, which needs a GPU",
        "use bfloat16 on the CPU",
    ),
    Unsupported(
        "allocator",
        (),
        "cpu",
        "allocator settings need a GPU: the CPU has no caching allocator",
    ),
    Unsupported(
        "optimizer",
        ("galore_adamw_8bit", "galore_adamw_8bit_layerwise"),
        "cpu",
        "{value} needs a GPU",
        "use galore_adamw on the CPU",
    ),
    Unsupported(
        "attention",
        ("flex_attention",),
        "cpu",
        "{value} has no backward pass on the CPU",
        "use sdpa, or --emulate",
    ),
    Unsupported("fsdp_version", (1,), "simulated", "FSDP 1 cannot be simulated", _EMULATE),
    Unsupported(
        "offload",
        ("parameters",),
        "simulated",
        "with FSDP, weights in host memory cannot be simulated yet",
        _EMULATE,
        unless=("zero1", "zero2", "zero3"),
    ),
    Unsupported(
        "fp8",
        ("transformer_engine",),
        "simulated",
        "Transformer Engine has its own kernels, so it cannot be simulated",
        "a plain plan and probe --emulate run Transformer Engine itself, if --python has it and a "
        "CUDA build of torch; or use fp8 = torchao",
    ),
    Unsupported("fp8", (), "cpu", "FP8 products need a GPU", "use --emulate or plan"),
    Unsupported("loss", ("liger",), "cpu", "Liger kernels need a GPU"),
    Unsupported("vllm_gpu_memory_utilization", (), "cpu", "vLLM beside the training needs a GPU"),
    Unsupported(
        "library",
        ("unsloth",),
        "simulated",
        "Unsloth compiles its layers for the card, so it cannot be simulated",
        "a plain plan and probe --emulate run Unsloth itself, if --python has it and a CUDA build "
        "of torch",
    ),
    Unsupported(
        "library",
        ("unsloth",),
        "cpu",
        "Unsloth needs a CUDA device to be imported",
        "use --emulate",
    ),
)


def unsupported(config: TrainConfig, where: Where) -> str | None:
    """Why a rung is not supported there, by the first row that says so; None if none does."""
    for row in UNSUPPORTED:
        value = getattr(config, row.key)
        if row.where == where and row.matches(value) and config.sharding not in row.unless:
            return row.text(value)
    return None
