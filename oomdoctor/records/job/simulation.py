"""What a worker has to simulate, what it predicts, and the recorded errors of predictions.

Sizes are integers in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from oomdoctor.records.configuration.config import TrainConfig, taken_bytes
from oomdoctor.records.facts.choices import Method
from oomdoctor.records.job.costs import Calibration
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.measurement import Measurement, OomEvent, Timing
from oomdoctor.records.job.model import LayerStack
from oomdoctor.records.job.step_time import StepTime


@dataclass(frozen=True, slots=True)
class PeakError:
    """How far a predicted peak on a device may be off.

    `share` is of what the allocator holds; the context may be less or more by some bytes.
    """

    share: float
    context_less_bytes: int
    context_more_bytes: int


@dataclass(frozen=True, slots=True)
class Target:
    """A device to predict for.

    `usable_bytes` is what a configuration may use, without the headroom. `overhead_bytes` is the
    part of it that tensors cannot use (context, libraries). `total_bytes` is the capacity that the
    driver reports. `gpu` has the published peaks, None for a bare size; `calibration` corrects them
    by what was measured on this machine. `interconnect` links several GPUs. With an `error`, what
    is closer to the limit than it is borderline.
    """

    name: str
    total_bytes: int
    usable_bytes: int
    overhead_bytes: int
    gpu: GpuFacts | None
    calibration: Calibration | None = None
    interconnect: str = "auto"
    error: PeakError | None = None

    @property
    def limit_bytes(self) -> int:
        """How much the caching allocator may reserve."""
        return self.usable_bytes - self.overhead_bytes

    def beside_vllm(self, config: TrainConfig) -> Target:
        """The device for a configuration, of which vLLM may take a part."""
        taken = taken_bytes(config, self.total_bytes)
        return replace(self, overhead_bytes=self.overhead_bytes + taken)


@dataclass(frozen=True, slots=True)
class OtherLength:
    """Another sequence length to record with the model of a job, and the file for it."""

    sequence_length: int
    recordings: str


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """The micro-batch sizes to predict for some devices, all from one simulation.

    `stacks` are the repeating layers, so that only a few of them are run. `detail` adds what the
    peak consists of. Sizes above one that fits no device are left out unless `every_size`.
    `as_cuda` is False only to compare with a measurement on the CPU. `recordings` is a file that
    may hold recordings of the configuration; what is recorded in addition is written to it.
    `other_lengths` are recorded with the same model. `for_later` records what predicts other sizes
    too. With `curve` the size that a report shows has the curve of its memory.
    """

    micro_batch_sizes: tuple[int, ...]
    targets: tuple[Target, ...]
    stacks: tuple[LayerStack, ...] = ()
    detail: bool = False
    every_size: bool = False
    as_cuda: bool = True
    recordings: str | None = None
    other_lengths: tuple[OtherLength, ...] = ()
    for_later: bool = False
    curve: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """Equal blocks that are alive at a peak: `count` of `size_bytes` each.

    `module` is the path of the module that allocated them, with `*` for the number of a layer.
    """

    size_bytes: int
    count: int
    category: str
    operator: str
    module: str


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The peak of one phase: the bytes alive then by category, which add up to the peak."""

    step: str
    phase: str
    peak_allocated_bytes: int
    by_category: Mapping[str, int]
    largest: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class DevicePrediction:
    """A micro-batch size on one device: whether it fits, and how long a step would take.

    `peak_reserved_bytes` is None if the peak of allocated bytes alone decides. `oom` is the first
    request that could not be met, None if only the missing bytes are known. A `borderline` peak is
    closer to the limit than its error, on either side. `step` is where the time goes, if detail
    was requested and the speed of the device is known.
    """

    target: str
    fits: bool
    peak_reserved_bytes: int | None
    missed_by_bytes: int | None
    oom: OomEvent | None
    timing: Timing | None
    borderline: bool = False
    step: StepTime | None = None


@dataclass(frozen=True, slots=True)
class PredictedSize:
    """The prediction for one micro-batch size; `measurement` assumes a device of unlimited size."""

    micro_batch_size: int
    measurement: Measurement
    devices: tuple[DevicePrediction, ...]
    phases: tuple[PhasePeak, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """A simulated configuration; `simulated_layers` of `layers` were run, the rest derived."""

    sizes: tuple[PredictedSize, ...]
    simulated_layers: int
    layers: int
    notes: tuple[str, ...]


Origin = Literal["measured", "published"]
Reference = Literal["emulated", "published"]
PeakMetric = Literal["allocated", "reserved"]
Slower = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class PeakErrorRecord:
    """Errors of peaks of one kind, relative to those they were compared with.

    `reference` is "emulated" for predictions against the same configurations on the emulated GPU,
    "published" for the emulated GPU against runs of real ones that others published. What is None
    is of every kind: `method`, `compute_capability` of the cards, `torch` (major and minor number:
    "2.12"). `p95` is the 95th percentile of the absolute errors.
    """

    reference: Reference
    metric: PeakMetric
    method: Method | None
    compute_capability: str | None
    torch: str | None
    count: int
    signed_median: float
    absolute_median: float
    p95: float


@dataclass(frozen=True, slots=True)
class SpeedErrorRecord:
    """Errors of estimated tokens per second of one kind, relative to the measured ones.

    All cards have this `compute_capability`. `slower` is what limited the speed by the estimate:
    the device, or the host that launches its operators. `p95` is the 95th percentile of the
    absolute errors.
    """

    origin: Origin
    compute_capability: str
    slower: Slower
    count: int
    signed_median: float
    absolute_median: float
    p95: float
