"""Make torch and the libraries behave as on CUDA, all differences together.

CUDA's dropout keeps a mask of one byte per element; the CPU's keeps noise instead. In training,
ATen/native/Dropout.cpp calls `native_dropout` if `is_fused_kernel_acceptable` (CUDA, a rate between
0 and 1, a tensor with elements).

The allocator's cache is emptied where peft prepares a quantized model, if there is a GPU. peft does
so since `prepare_model_for_kbit_training` has `auto_clear_cache` (huggingface/peft#3265): after it
has cast what is not quantized to float32, and before anything else is allocated.

TRL's fused output head runs as on CUDA, without launching its Triton kernels. There only the scored
tokens are projected, and a Triton kernel folds each tile of scores (TRL 1.16 `trainer/utils.py`
`add_fused_lm_head`, `kernels/chunked_logprob.py`). The Python code around the kernels allocates all
that they read and write, and runs unchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from oomdoctor.analysis.simulator.tape import EMPTIED, Region
from oomdoctor.records.configuration.config import TrainConfig, is_cast_by_peft, trains_with_trl
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.optimizers import is_paged
from oomdoctor.worker.replacing import implemented, replaced
from oomdoctor.worker.simulating.cuda import attention, autocast, compiled_masks, flex, liger
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.cuda.liger import launch, no_driver_needed
from oomdoctor.worker.tracing.trace import AllocationTrace

if TYPE_CHECKING:
    from bitsandbytes.optim.optimizer import Optimizer8bit


_SMALLEST_PAGED = 100_000  # elements


@contextmanager
def as_on_cuda(
    config: TrainConfig, choices: Choices, trace: AllocationTrace, managed: dict[Region | None, int]
) -> Iterator[None]:
    """Simulate CUDA's kernels for this rung while the context is open.

    `choices` says which kernels the card has. The bytes of paged states go to `managed`, by unit.
    """
    with ExitStack() as stack:
        stack.enter_context(autocast.cuda_autocast())
        stack.enter_context(choices.numbers.told_apart(trace))
        stack.enter_context(implemented({"dropout": cuda_dropout}, "AutogradCPU"))
        stack.enter_context(attention.cuda_sdpa(choices.attention))
        if ATTENTIONS[config.attention].stand_in is not None:
            stack.enter_context(attention.simulated_packages())
        elif config.compile:
            stack.enter_context(compiled_masks.simulated_masks())
        if config.attention == "flex_attention":
            stack.enter_context(flex.simulated_attention())
        if is_cast_by_peft(config):
            stack.enter_context(emptied_cache_noted(trace))
        if is_paged(config.optimizer):
            stack.enter_context(paged_states(trace, managed))
        if trains_with_trl(config):
            stack.enter_context(trl_kernels())
        if config.loss == "liger":
            stack.enter_context(liger.simulated_kernels(choices))
        yield


def cuda_dropout(tensor: torch.Tensor, rate: float, train: bool) -> torch.Tensor:
    """`dropout` on CPU tensors as on CUDA."""
    if not train or rate == 0.0 or tensor.numel() == 0:
        return tensor
    if rate == 1.0:
        return tensor * 0.0
    return torch.ops.aten.native_dropout(tensor, rate, True)[0]


def emptied_cache_noted(trace: AllocationTrace) -> AbstractContextManager[None]:
    """Put the emptied cache on the tape while the context is open, as with a GPU."""
    import peft

    prepare = peft.prepare_model_for_kbit_training

    @wraps(prepare)
    def noting(*args: object, **kwargs: object) -> Module:
        model: Module = prepare(*args, **kwargs)
        trace.tape.enter(EMPTIED, trace.phase)
        return model

    if "auto_clear_cache" not in inspect.signature(prepare).parameters:
        return nullcontext()
    # It asks for a GPU, and there is none.
    return replaced(peft, "prepare_model_for_kbit_training", noting)


def paged_states(
    trace: AllocationTrace, managed: dict[Region | None, int]
) -> AbstractContextManager[None]:
    """Leave paged states out of the trace and add their bytes to `managed`, by unit.

    Like bitsandbytes' `get_state_buffer`, which does not page small states.
    """
    from bitsandbytes.optim.optimizer import Optimizer8bit

    def get_state_buffer(
        _: Optimizer8bit, parameter: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        if parameter.numel() < _SMALLEST_PAGED:
            return torch.zeros_like(parameter, dtype=dtype)
        trace.works_on(parameter)
        with trace.paused():
            state = torch.zeros_like(parameter, dtype=dtype)
        unit = trace.unit_of(parameter)
        managed[unit] = managed.get(unit, 0) + state.untyped_storage().nbytes()
        return state

    # The original asks CUDA for unified memory.
    return replaced(Optimizer8bit, "get_state_buffer", get_state_buffer)


class _Kernel:
    """Stands in for a Triton kernel: `kernel[grid](arguments)`."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return launch


@contextmanager
def trl_kernels() -> Iterator[None]:
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


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """`_addmm_fp32` on CUDA: cuBLAS multiplies in 16 bits and adds in float32."""
    if left.dtype in (torch.float16, torch.bfloat16):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())
