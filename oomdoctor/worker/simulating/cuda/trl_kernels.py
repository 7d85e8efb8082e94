"""Run TRL's fused output head as on CUDA, without launching its Triton kernels.

On CUDA only the scored tokens are projected, and a Triton kernel folds each tile of scores (TRL
1.16 `trainer/utils.py` `add_fused_lm_head`, `kernels/chunked_logprob.py`). The Python code around
the kernels allocates all that they read and write, and runs unchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from oomdoctor.worker.simulating.cuda.liger import launch, no_driver_needed
from oomdoctor.worker.simulating.replacing import replaced

if TYPE_CHECKING:
    import torch


class _Kernel:
    """Stands in for a Triton kernel: `kernel[grid](arguments)`."""

    def __getitem__(self, grid: Any) -> Any:
        return launch


@contextmanager
def simulated_kernels() -> Iterator[None]:
    """Make TRL's head take its path for CUDA. Without TRL this does nothing: the build says so."""
    with ExitStack() as stack:
        enter = stack.enter_context
        try:
            if importlib.util.find_spec("triton") is not None:
                enter(no_driver_needed())
            kernels = importlib.import_module("trl.kernels.chunked_logprob")
            utils = importlib.import_module("trl.trainer.utils")
        except ImportError:
            yield
            return
        if not hasattr(kernels, "triton"):  # torch for a GPU brings it
            vars(kernels)["triton"] = SimpleNamespace(cdiv=lambda a, b: -(-a // b))
            stack.callback(vars(kernels).pop, "triton")
        # A simulated device is the CPU, where TRL folds tiles with torch.
        for module in (kernels, utils):
            enter(replaced(module, "_use_triton", lambda _: True))
        # There is no GPU to launch a kernel on.
        for name in ("_forward_kernel", "_backward_kernel"):
            enter(replaced(kernels, name, _Kernel()))
        # On the CPU the factors are copied to float32 first.
        if kernels._MM_OUT_DTYPE:
            enter(replaced(kernels, "_addmm_fp32", _add_product))
        yield


def _add_product(total: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> None:
    """`_addmm_fp32` on CUDA: cuBLAS multiplies in 16 bits and adds in float32."""
    import torch

    if one.dtype in (torch.float16, torch.bfloat16):
        torch.addmm(total, one, other, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(one.float(), other.float())
