"""What a worker is asked to simulate, and what it predicts. Sizes are integers in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oomdoctor.records.costs import Calibration
from oomdoctor.records.machine import GpuFacts
from oomdoctor.records.measurement import Measurement, OomEvent, Timing
from oomdoctor.records.model import LayerStack


@dataclass(frozen=True, slots=True)
class Target:
    """A device to predict for. `usable_bytes` is what a rung may use, headroom taken off;

    `overhead_bytes` is the part of it that no tensor gets (context, libraries). `total_bytes` is
    what the driver calls the capacity. `gpu` has the published peaks, None for a bare size, and
    `calibration` what measuring on this machine corrected them by.
    """

    name: str
    total_bytes: int
    usable_bytes: int
    overhead_bytes: int
    gpu: GpuFacts | None
    calibration: Calibration | None = None

    @property
    def limit_bytes(self) -> int:
        """What the caching allocator may reserve."""
        return self.usable_bytes - self.overhead_bytes


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """The micro-batch sizes to predict for some devices, all by one simulation of the rung.

    `stacks` are the repeating layers, so that few of them have to be run. `detail` asks what the
    peak is made of. Sizes above one that no device has room for are left out unless `every_size`.
    `as_cuda` is False only where a CPU's own measurement is to be matched.
    """

    micro_batch_sizes: tuple[int, ...]
    targets: tuple[Target, ...]
    stacks: tuple[LayerStack, ...] = ()
    detail: bool = False
    every_size: bool = False
    as_cuda: bool = True


@dataclass(frozen=True, slots=True)
class Allocation:
    """Blocks alike that are alive at a peak: `count` of `size_bytes` each.

    `module` is the path of the module that made them, with `*` for the number of a layer.
    """

    size_bytes: int
    count: int
    category: str
    operator: str
    module: str


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The highest moment of one phase: what is alive by category, adding up to the peak."""

    step: str
    phase: str
    peak_allocated_bytes: int
    by_category: Mapping[str, int]
    largest: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class DevicePrediction:
    """A micro-batch size on one device: whether it fits, and how long a step would take.

    `peak_reserved_bytes` is None where the peak allocated alone decides, and `oom` tells the first
    request that could not be met, None where only the size of the excess is known.
    """

    target: str
    fits: bool
    peak_reserved_bytes: int | None
    missed_by_bytes: int | None
    oom: OomEvent | None
    timing: Timing | None


@dataclass(frozen=True, slots=True)
class PredictedSize:
    """What is predicted at one micro-batch size; `measurement` holds for a device without limit."""

    micro_batch_size: int
    measurement: Measurement
    devices: tuple[DevicePrediction, ...]
    phases: tuple[PhasePeak, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """A simulated rung. `simulated_layers` of `layers` were run, the others follow from them."""

    sizes: tuple[PredictedSize, ...]
    simulated_layers: int
    layers: int
    notes: tuple[str, ...]
