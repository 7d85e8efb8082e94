"""Whether a peak fits a device: usable memory, the error of a prediction, and the smallest card.

Plan, probe, run, snapshot and explain ask here, so they agree. Usable memory is what a process may
take of a device: its total or what is free, minus the headroom. The CUDA context is a part of it.
What the allocator holds at the peak plus the context must not exceed it. A prediction that is
closer to the limit than its own error is borderline: neither "fits" nor "does not fit".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from oomdoctor.analysis.memory.overhead import context_bytes, device_total_bytes, with_nccl
from oomdoctor.records.capability import ANY, capability_numbers
from oomdoctor.records.facts.choices import Method
from oomdoctor.records.job.machine import ByteRange, GpuFacts
from oomdoctor.records.job.simulation import PeakError, PeakErrorRecord, PeakMetric
from oomdoctor.units import format_bytes, format_percent

_ENOUGH = 5  # with fewer, a 95th percentile is just the largest of a few


@dataclass(frozen=True, slots=True)
class PeakErrors:
    """What is recorded of the errors of peaks, and where a prediction is for.

    Two comparisons are added: predictions beside the same rungs on the emulated GPU, and the
    emulated GPU beside published runs of real ones. Each is the 95th percentile of its absolute
    errors. The first is taken from rungs of the same method, compute capability and torch; if they
    are few, from more and more kinds of rungs, of the same torch before others.

    `compute_capability` is the card's, `torch` the version of the training environment ("2.12.1");
    None if unknown.
    """

    records: Sequence[PeakErrorRecord]
    compute_capability: str | None
    torch: str | None

    def share(self, method: Method, metric: PeakMetric) -> float | None:
        """The share by which a peak may be off either way; None if nothing was compared."""
        prediction = self.of_simulation(method, metric)
        return None if prediction is None else prediction + (self.of_emulation() or 0.0)

    def of_simulation(self, method: Method, metric: PeakMetric) -> float | None:
        """The share by which a predicted peak differs from that on the emulated GPU."""
        release = None if self.torch is None else ".".join(self.torch.split(".")[:2])
        emulated = [r for r in self.records if (r.reference, r.metric) == ("emulated", metric)]
        kinds = (
            (method, self.compute_capability, release),
            *((method, None, release), (None, None, release), (method, None, None)),
        )
        enough = [r for r in emulated if r.count >= _ENOUGH]
        best = (r for k in kinds for r in enough if (r.method, r.compute_capability, r.torch) == k)
        record = next(best, None) or max(emulated, key=lambda r: r.p95, default=None)
        return None if record is None else record.p95

    def of_emulation(self) -> float | None:
        """The share by which a peak on the emulated GPU differs from that on a real one."""
        # What torch reserves follows from what it allocates, by torch's own code.
        real = next((r for r in self.records if r.reference == "published"), None)
        return None if real is None else real.p95


USUAL_HEADROOM = 0.02
"""The share of a device that stays free unless the user says otherwise."""
# The assumed relative error of a predicted peak if no prediction was ever compared.
ASSUMED_ERROR = 0.02
# With DeepSpeed only tensors are predicted. Where its engine ran for a 7B model, on 3 to 6 emulated
# GPUs, the allocator reserved 12% to 22% more than them.
_BEYOND_TENSORS = 0.25


def headroom_bytes(available_bytes: int, share: float) -> int:
    """The part of a device's memory that must stay free."""
    return round(available_bytes * share)


def usable_bytes(gpu: GpuFacts, headroom: float) -> int:
    """What a process may use of a card, the CUDA context included."""
    total, _ = device_total_bytes(gpu)
    return total - headroom_bytes(total, headroom)


def peak_error(context: ByteRange, errors: PeakErrors, method: Method) -> PeakError:
    """How far the predicted peak of a rung may be off on a card with this context."""
    share = errors.share(method, "reserved")
    return PeakError(
        ASSUMED_ERROR if share is None else share,
        context.likely - context.low,
        context.high - context.likely,
    )


def is_borderline(
    held_bytes: int,
    outside_bytes: int,
    usable_bytes: int,
    error: PeakError,
    *,
    tensors_only: bool = False,
) -> bool:
    """Whether a predicted peak is closer to the usable memory than its error, on either side.

    `held_bytes` is what the allocator holds at the peak, or with `tensors_only` what the tensors
    take, and `outside_bytes` the context and what else the process has.
    """
    more = error.share + (_BEYOND_TENSORS if tensors_only else 0.0)
    low = held_bytes * (1 - error.share) + outside_bytes - error.context_less_bytes
    high = held_bytes * (1 + more) + outside_bytes + error.context_more_bytes
    return low <= usable_bytes < high


def borderline_note(error: PeakError, held_bytes: int, *, tensors_only: bool) -> str:
    """Why a peak is borderline, for the report: `held_bytes` is what the allocator holds then.

    The context is named where its size is the larger part of the error.
    """
    if tensors_only:
        more = format_percent(_BEYOND_TENSORS)
        return f"borderline: the allocator may reserve up to {more} beyond tensors"
    share = format_percent(error.share, 1)
    text = f"borderline: predictions like this are off by up to {share}"
    context = max(error.context_less_bytes, error.context_more_bytes)
    if context <= error.share * held_bytes:
        return text
    return f"{text}, the CUDA context and libraries by up to {format_bytes(context)}"


def smallest_card(
    gpus: Iterable[GpuFacts],
    holds: Callable[[int], bool],
    *,
    vendor: str = "NVIDIA",
    least: tuple[int, int] = ANY,
    headroom: float = USUAL_HEADROOM,
    ranks: int = 1,
    context: Callable[[GpuFacts], ByteRange] = context_bytes,
    surely: bool = False,
) -> GpuFacts | None:
    """The card with the least memory whose allocator may hold what is needed; None if none may.

    `holds` says whether so many bytes beside context and headroom are enough. Cards below the
    compute capability `least` and those that share the host's memory are left out. With several
    `ranks`, NCCL's buffers take a part of each card. With `surely` the context is the largest that
    was observed, as it is for a prediction that is not borderline.
    """
    for gpu in sorted(gpus, key=lambda facts: (facts.memory_bytes, device_total_bytes(facts)[0])):
        too_old = least > ANY and capability_numbers(gpu.compute_capability) < least
        if gpu.vendor != vendor or gpu.shares_host_memory or too_old:
            continue
        outside = with_nccl(context(gpu), ranks)
        if holds(usable_bytes(gpu, headroom) - (outside.high if surely else outside.likely)):
            return gpu
    return None
