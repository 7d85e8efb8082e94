"""States of paged optimizers lie in unified memory, which the caching allocator never sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.worker.tracing.trace import AllocationTrace

_SMALLEST_PAGED = 100_000  # elements


@contextmanager
def paged_states(trace: AllocationTrace, managed: dict[Region | None, int]) -> Iterator[None]:
    """Paged states are left out of the trace; their bytes go to `managed`, by unit.

    As in bitsandbytes' `get_state_buffer`: small states are not paged.
    """
    import torch
    from bitsandbytes.optim.optimizer import Optimizer8bit

    def get_state_buffer(_: Any, parameter: Any, dtype: Any = torch.float32) -> Any:
        if parameter.numel() < _SMALLEST_PAGED:
            return torch.zeros_like(parameter, dtype=dtype)
        with trace.paused():
            state = torch.zeros_like(parameter, dtype=dtype)
        block = trace.block_of(parameter)
        unit = None if block is None else trace.tape.blocks[block].region
        managed[unit] = managed.get(unit, 0) + state.untyped_storage().nbytes()
        return state

    with mock.patch.object(Optimizer8bit, "get_state_buffer", get_state_buffer):
        yield
