"""A number without a device is on the host; one with a device, and every table, is not."""

from __future__ import annotations

import torch

from oomdoctor.worker.simulating.cuda.host_numbers import HostNumbers
from oomdoctor.worker.tracing.steps import OnHost
from oomdoctor.worker.tracing.trace import AllocationTrace


def counted(make: object) -> int:
    trace, numbers = AllocationTrace("cpu"), HostNumbers()
    trace.steps_of = lambda call: (OnHost(0),) if numbers.makes_one(call) else ()
    with numbers.told_apart(trace), trace.recording():
        kept = make()  # type: ignore[operator]
    trace.finish()
    del kept
    return trace.live


def test_who_names_a_device_makes_the_number_there() -> None:
    assert counted(lambda: torch.tensor(1.0)) == 0
    assert counted(lambda: torch.tensor(1.0, device="cpu")) == 0
    assert counted(lambda: torch.tensor(1.0, device=torch.device("cpu"))) == 4
    assert counted(lambda: torch.tensor([1.0, 2.0])) == 8


def test_so_it_is_with_numbers_of_a_function_that_fills() -> None:
    assert counted(lambda: torch.zeros(())) == 0
    assert counted(lambda: torch.ones([], dtype=torch.float64)) == 0
    assert counted(lambda: torch.zeros((), device="cpu")) == 0
    assert counted(lambda: torch.zeros((), device=torch.device("cpu"))) == 4
    assert counted(lambda: torch.zeros(2)) == 8


def test_a_default_device_counts_too() -> None:
    def made() -> torch.Tensor:
        with torch.device("cpu"):
            return torch.tensor(1.0)

    assert counted(made) == 4


def test_devices_of_a_context_still_count_after_a_simulation() -> None:
    from torch.utils import _device

    _device._device_constructors.cache_clear()  # as in a process that simulates first
    with HostNumbers().told_apart(AllocationTrace("cpu")), torch.device("meta"):
        assert torch.ones(2).is_meta
    with torch.device("meta"):
        assert torch.ones(2).is_meta and torch.tensor(1.0).is_meta
