"""`torch.compile`: whether it can run here, and what its numbers mean."""

from __future__ import annotations

import inspect

import torch
from torch.utils._python_dispatch import _disable_current_modes

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.setup import Setup

_SIMULATED = (
    "predicted as eager: torch.compile fuses operators, so the measured peak and time may be lower"
)
_STEP_ON_CPU = (
    "memory is measured on the eager step of the optimizer, which takes more than the compiled "
    "one, because on the CPU the tensors of compiled kernels cannot be counted"
)
_ON_CPU = (
    "memory is measured on the eager step, because on the CPU the tensors of compiled kernels "
    "cannot be counted; times are measured on the compiled step"
)


def prepare(setup: Setup) -> None:
    """Check that a compiled rung can run on the device, and note what its numbers mean.

    A simulation compiles nothing.

    Raises:
        UnsupportedError: the compiler cannot run here.
    """
    if setup.simulated:
        setup.notes.append(_SIMULATED)
    else:
        _prepare(setup, _ON_CPU)


def prepare_step(setup: Setup) -> None:
    """The same for an optimizer that compiles its step; a simulation models what it takes."""
    if not setup.simulated:
        _prepare(setup, _STEP_ON_CPU)


def _prepare(setup: Setup, on_cpu: str) -> None:
    _try_compiler(setup.device)
    if setup.device.type == "cpu":
        setup.notes.append(on_cpu)


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
