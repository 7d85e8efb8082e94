"""`torch.compile`: whether it can run here, and what its numbers mean."""

from __future__ import annotations

import inspect

import torch
from torch.utils._python_dispatch import _disable_current_modes

from oomdoctor.records.job.model import Task
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.setup import Setup

_SIMULATED = (
    "memory is predicted as eager: torch.compile fuses operators, so the measured peak may be "
    "lower; times are predicted with fused kernels"
)
_STEP_ON_CPU = (
    "memory is measured on the eager step of the optimizer, which takes more than the compiled "
    "one, because on the CPU the tensors of compiled kernels cannot be counted"
)
_ON_CPU = (
    "memory is measured on the eager step, because on the CPU the tensors of compiled kernels "
    "cannot be counted; times are measured on the compiled step"
)
_MASK = (
    "compiled, transformers gives sdpa a mask of all pairs of tokens, which FlashAttention cannot "
    "take; flash_attention_2 needs none"
)
# Whose models would need no mask otherwise; those of seq2seq-lm add their positions to one.
_WITH_MASKS: tuple[Task, ...] = (
    *("causal-lm", "masked-lm", "sequence-classification"),
    *("image-text-to-text", "embedding"),
)


def prepare(setup: Setup) -> None:
    """Check that a compiled model or optimizer can run here, and note what the numbers mean.

    A simulation compiles nothing, but models what the compiled step of an optimizer takes.

    Raises:
        UnsupportedError: the compiler cannot run here.
    """
    if not setup.simulated:
        _try_compiler(setup.device)
        if setup.device.type == "cpu":
            setup.notes.append(_ON_CPU if setup.config.compile else _STEP_ON_CPU)
    elif setup.config.compile:
        setup.notes.append(_SIMULATED)


def note_mask(setup: Setup) -> None:
    """Note that compiled sdpa gets a mask of all pairs of tokens, where it would need none."""
    from transformers import modeling_utils

    config = setup.config
    as_cuda = setup.job.simulation.as_cuda if setup.job.simulation else setup.device.type == "cuda"
    masked_anyway = config.padding != "none" or config.packing != "none"
    if not as_cuda or masked_anyway or setup.task not in _WITH_MASKS or setup.fell_back_to_eager:
        return
    # In a simulation, sdpa may stand in for a package.
    attend = modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
    if config.attention == "sdpa" and attend.__module__.startswith("transformers."):
        setup.notes.append(_MASK)


def begin_to_compile(model: torch.nn.Module) -> None:
    """Compile `model` from now on: Dynamo remembers what it left eager while memory was counted."""
    from torch._dynamo.eval_frame import reset_code

    torch._dynamo.reset()
    # Before torch 2.7, that forgets only the frames that Dynamo has looked into.
    calls = [torch.nn.Module._call_impl, torch.nn.Module._wrapped_call_impl]
    for call in (*calls, *(module.forward for module in model.modules())):
        code = getattr(inspect.unwrap(call), "__code__", None)
        if code is not None:
            reset_code(code)


def _try_compiler(device: torch.device) -> None:
    """Compile one line: it needs the C++ compiler, Python's headers, Triton and a recent GPU."""

    def add_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    try:
        # Under a dispatch mode, such as the one that counts memory, Dynamo compiles nothing.
        with _disable_current_modes():
            torch.compile(add_one, backend="inductor")(torch.ones(8, device=device))
    except (RuntimeError, ImportError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The first line may only say who raised it.
        reason = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])
        needed = "a C++ compiler" if device.type == "cpu" else "Triton and a C compiler"
        raise UnsupportedError(
            f"torch.compile cannot run here ({reason}); it needs {needed} and Python's headers, "
            "for example: apt install g++ python3-dev"
        ) from error
