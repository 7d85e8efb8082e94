"""Make torch and the libraries behave as on CUDA, all differences together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.records.config import TrainConfig, trains_with_trl
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.optimizers import is_paged
from oomdoctor.worker.simulating.cuda import (
    attention,
    autocast,
    dropout,
    emptied_cache,
    flash_package,
    flex,
    host_numbers,
    liger,
    paged_states,
    trl_kernels,
)
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.device import layer_norm, sums
from oomdoctor.worker.tracing.trace import AllocationTrace


@contextmanager
def as_on_cuda(
    config: TrainConfig,
    choices: Choices,
    trace: AllocationTrace,
    managed: dict[Region | None, int],
) -> Iterator[None]:
    """Simulate CUDA's kernels for this rung while the context is open.

    `choices` says which kernels the card has. The bytes of paged states go to `managed`, by unit.
    """
    with ExitStack() as stack:
        stack.enter_context(autocast.cuda_autocast())
        stack.enter_context(sums.sums_in_place())
        stack.enter_context(host_numbers.told_apart(trace))
        stack.enter_context(layer_norm.cuda_statistics())
        stack.enter_context(dropout.cuda_dropout())
        stack.enter_context(attention.cuda_sdpa(choices.attention))
        if ATTENTIONS[config.attention].stand_in is not None:
            stack.enter_context(flash_package.simulated_attention())
        if config.attention == "flex_attention":
            stack.enter_context(flex.simulated_attention())
        if config.quantization != "none" and config.kbit_prepare == "peft":
            stack.enter_context(emptied_cache.noted(trace))
        if is_paged(config.optimizer):
            stack.enter_context(paged_states.paged_states(trace, managed))
        if trains_with_trl(config):
            stack.enter_context(trl_kernels.simulated_kernels())
        if config.loss == "liger":
            stack.enter_context(liger.simulated_kernels(choices))
        yield
