"""Seconds of an operator that is called again and again.

On a GPU, work that takes long is queued first: then the operators wait on the device, and two
events around them give the device's time, however slow the host is. On the CPU with one thread, it
is the CPU time of that thread, which other processes do not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from oomdoctor.records.job.device_times import Clock
from oomdoctor.worker.calibrating.operators import TABLE, Arguments, Operator, precision

_MOST_CALLS = 200
_WAIT_CYCLES_PER_S = 2e9  # of a GPU's clock, so a wait lasts at least as long as it should
_LEAST_S = 1e-7  # of a call; an emulated GPU has no time at all
_HOST_S = 20e-6  # in which the host surely queues an operator that it calls again


class Stopwatch:
    """Times operators on a device; `clock` is "device", "wall" or "cpu"."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        one_thread = device.type == "cpu" and torch.get_num_threads() == 1
        self.clock: Clock = "device" if device.type == "cuda" else "cpu" if one_thread else "wall"
        self.now: Callable[[], float] = time.thread_time if one_thread else time.perf_counter

    def seconds(self, operator: Operator, calls: int, first: int = 0) -> float:
        """The seconds of one call, as the mean of `calls`, of which `first` decides the turn."""
        func, turns = operator.func, operator.turns
        chosen = [turns[(first + number) % len(turns)] for number in range(calls)]
        with precision(operator.cost.dtype):
            return self._mean(func, chosen)

    def _mean(self, func: OpOverload, chosen: Sequence[Arguments]) -> float:
        calls = len(chosen)
        if self._device.type == "cpu":
            begin = self.now()
            for args, kwargs in chosen:
                func(*args, **kwargs)
            return (self.now() - begin) / calls
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(calls * _HOST_S * _WAIT_CYCLES_PER_S))
        begun.record()
        for args, kwargs in chosen:
            func(*args, **kwargs)
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1000 / calls

    def calls_for(self, operator: Operator) -> int:
        """How many calls a sample has; it warms the operator up."""
        sample_s = TABLE["sample_s"][self._device.type]
        if (alone := self.seconds(operator, 1)) < sample_s:
            alone = self.seconds(operator, len(operator.turns))
        return max(1, min(_MOST_CALLS, int(sample_s / max(alone, _LEAST_S))))
