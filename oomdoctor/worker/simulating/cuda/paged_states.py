"""The states of paged optimizers live in unified memory, outside the caching allocator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.worker.simulating.replacing import replaced
from oomdoctor.worker.tracing.trace import AllocationTrace

if TYPE_CHECKING:
    import torch
    from bitsandbytes.optim.optimizer import Optimizer8bit

_SMALLEST_PAGED = 100_000  # elements


@contextmanager
def paged_states(trace: AllocationTrace, managed: dict[Region | None, int]) -> Iterator[None]:
    """Leave paged states out of the trace and add their bytes to `managed`, by unit.

    Like bitsandbytes' `get_state_buffer`, which does not page small states.
    """
    import torch
    from bitsandbytes.optim.optimizer import Optimizer8bit

    def get_state_buffer(
        _: Optimizer8bit, parameter: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        if parameter.numel() < _SMALLEST_PAGED:
            return torch.zeros_like(parameter, dtype=dtype)
        trace.works_on(parameter)
        with trace.paused():
            state = torch.zeros_like(parameter, dtype=dtype)
        block = trace.block_of(parameter)
        unit = None if block is None else trace.tape.blocks[block].region
        managed[unit] = managed.get(unit, 0) + state.untyped_storage().nbytes()
        return state

    # The original asks CUDA for unified memory.
    with replaced(Optimizer8bit, "get_state_buffer", get_state_buffer):
        yield
