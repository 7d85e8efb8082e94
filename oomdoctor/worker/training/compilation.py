"""`torch.compile`: whether it can run here, and what its figures stand for."""

from __future__ import annotations

from typing import Any

from oomdoctor.worker.protocol.unsupported import UnsupportedError

_SIMULATED = (
    "predicted as eager: torch.compile fuses operators, so the measured peak and time may be lower"
)
_ON_CPU = (
    "the memory is that of the eager step, because compiled kernels hide their tensors from the "
    "count on the CPU; the times are those of the compiled step"
)


def prepare(device: Any, *, simulated: bool) -> list[str]:
    """Make sure that a compiled rung can run on `device`; what has to be said of its figures.

    Raises:
        UnsupportedError: the compiler cannot run here; nothing is compiled in a simulation.
    """
    if simulated:
        return [_SIMULATED]
    _try_compiler(device)
    return [_ON_CPU] if device.type == "cpu" else []


def begin_to_compile() -> None:
    """Compile from here on: Dynamo remembers what it left eager while the memory was counted."""
    import torch

    torch._dynamo.reset()


def _try_compiler(device: Any) -> None:
    """Compile one line: C++ compiler, Python headers, Triton and the GPU's age all show there."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    def add_one(x: Any) -> Any:
        return x + 1

    try:
        # Dynamo leaves code eager under a dispatch mode, such as the one that counts memory.
        with _disable_current_modes():
            torch.compile(add_one, backend="inductor")(torch.ones(8, device=device))
    except (RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        needed = "a C++ compiler" if device.type == "cpu" else "Triton and a C compiler"
        raise UnsupportedError(
            f"torch.compile cannot run here ({reason}); it needs {needed} and the headers of "
            "Python, for example: apt install g++ python3-dev"
        ) from error
