"""What `plan` is asked beyond a survey, and the parts of its answer that no survey has.

Sizes are integers in bytes, unknown is None. Field names are public JSON keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.simulation import PhasePeak

SweptKey = Literal["sequence_length", "micro_batch_size"]


@dataclass(frozen=True, slots=True)
class Sweep:
    """One key of every rung, taken through some values in ascending order."""

    key: SweptKey
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The devices and the question of a plan.

    `gpus` are published names of cards, or sizes with their unit. With `all_gpus` they are all that
    oomdoctor knows. `why` is the label of the rung to be taken apart.
    """

    gpus: tuple[str, ...]
    all_gpus: bool = False
    sweep: Sweep | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes that are likely, and between which they were found; `source` says on what grounds."""

    low: int
    likely: int
    high: int
    source: str


@dataclass(frozen=True, slots=True)
class CardPick:
    """The best rung of a method on a card: the fastest that fits, else the one that lacks least.

    `missed_by_bytes` is None where it fits. With `by_formula` it is what a formula's lower bound
    says, because no rung of the method could be simulated: the true lack is larger.
    """

    key: str
    label: str
    fits: bool
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    peak_device_bytes: int | None
    tokens_per_s: float | None
    tokens_per_s_spread: float | None
    tokens_time_s: float | None
    missed_by_bytes: int | None
    by_formula: bool = False


@dataclass(frozen=True, slots=True)
class CardPicks:
    """A pick a method; None where nothing of the method was predicted."""

    full: CardPick | None
    lora: CardPick | None
    qlora: CardPick | None


@dataclass(frozen=True, slots=True)
class CardPlan:
    """A device that was predicted for: what a rung may use of it, and what is best on it.

    `memory_bytes` is the size it is sold with, `total_bytes` what PyTorch reports, by
    `total_source`. `usable_bytes` is without the headroom; `context` is the part of it that no
    tensor gets. `fitting` of `rungs` rungs fit.
    """

    name: str
    compute_capability: str | None
    memory_bytes: int
    total_bytes: int
    total_source: str
    headroom_bytes: int
    usable_bytes: int
    context: ByteRange
    fitting: int
    rungs: int
    picks: CardPicks


@dataclass(frozen=True, slots=True)
class SweptPeak:
    """A rung at one value of the sweep; None where not predicted.

    `least_bytes` is the least that the device has to give: the highest sum of tensors and the
    context, without what the allocator holds free, which depends on what there is.
    """

    value: int
    least_bytes: int | None
    fits: bool | None


@dataclass(frozen=True, slots=True)
class SweepLine:
    """A rung on a card through all values.

    `largest_fitting` is the largest value that was predicted to fit. `crossed_at` is where the
    straight line from a value that fits to the next one meets what may be used, None where it never
    does. `reason` is why nothing was predicted.
    """

    card: str
    key: str
    label: str
    micro_batch_size: int | None
    peaks: tuple[SweptPeak, ...]
    largest_fitting: int | None
    crossed_at: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """How the peaks grow: one line a card and rung."""

    key: SweptKey
    values: tuple[int, ...]
    lines: tuple[SweepLine, ...]


@dataclass(frozen=True, slots=True)
class FormulaTerm:
    """A term of the formula view: bytes a parameter times parameters, beside what was simulated.

    `bytes_per_parameter` and `parameters` are None for what no formula knows. `simulated_bytes` is
    the term's part of the highest moment.
    """

    name: str
    bytes_per_parameter: float | None
    parameters: int | None
    formula_bytes: int | None
    simulated_bytes: int | None


@dataclass(frozen=True, slots=True)
class FormulaView:
    """What bytes a parameter explain of a peak, and how far the rule of thumb is off.

    `rule_bytes` is 16 bytes for each parameter; `rule_error` its relative error against the
    simulated peak use of the device. `remarks` say where it is wrong.
    """

    terms: tuple[FormulaTerm, ...]
    formula_bytes: int
    rule_bytes: int
    rule_error: float
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """One rung at one micro-batch size taken apart: every phase's highest moment, and formulas.

    `peak_allocated_bytes` is the highest of all; what the allocator holds beyond it and the context
    come on top.
    """

    label: str
    micro_batch_size: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    context_bytes: int
    peak_device_bytes: int
    phases: tuple[PhasePeak, ...]
    formula: FormulaView
