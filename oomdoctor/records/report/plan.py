"""What only `plan` has: the devices and questions of its request, and parts of its report.

Sizes are integers in bytes, unknown is None. Field names are public JSON keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.facts.choices import Method
from oomdoctor.records.job.costs import CalibratedBy
from oomdoctor.records.job.dataset import TrainingTime
from oomdoctor.records.job.machine import ByteRange
from oomdoctor.records.job.simulation import PhasePeak
from oomdoctor.records.job.step_time import StepTime
from oomdoctor.records.report.searched import GpuRange, SolvedKey

SweptKey = Literal["sequence_length", "micro_batch_size"]
CardOrder = Literal["speed", "memory", "name", "cost"]
# "auto" and the names in data/speed.toml.
Interconnect = Literal[
    "auto", "nvlink", "pcie", "infiniband-hdr", "infiniband-ndr", "ethernet-10g", "ethernet-25g",
    "ethernet-100g",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sweep:
    """One key that is set to several values in every configuration, in ascending order."""

    key: SweptKey
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CardPrice:
    """What an hour of a card costs.

    `card` is its published name, `name` the one in the file.
    """

    card: str
    per_hour: float
    name: str


@dataclass(frozen=True, slots=True)
class PriceList:
    """The prices of a file.

    `currency` is its symbol or label (`$`, `EUR`), empty if it has none.

    `unknown` are the names in the file that are not cards, `repeated` the cards that it lists
    more than once: the lowest price counts. `examples` is the date and the source of built-in
    prices; None for the prices of a file.
    """

    source: str
    currency: str
    prices: tuple[CardPrice, ...]
    unknown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    examples: str | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The devices and the question of a plan.

    `gpus` are published names of cards, or sizes with a unit. With `all_gpus` they are all cards
    that oomdoctor knows. `why` is the label of the configuration to explain in detail. Cards with
    less than `min_memory_bytes` are left out. With `sort` the report has the cards on which
    something fits first, in that order. `solve` is the setting whose largest value that fits is
    asked for. With `verify` the configurations that matter also run on the emulated card. With
    `suggest` changes are looked for that make a method fit. `fewest` asks for the fewest GPUs with
    which each configuration fits. `interconnect` links the GPUs; "auto" takes what the card has.
    `host_memory_bytes` is the host memory of a machine. `context_bytes` is what the process was
    seen to take besides its tensors, where that is known.
    """

    gpus: tuple[str, ...]
    all_gpus: bool = False
    sweep: Sweep | None = None
    why: str | None = None
    min_memory_bytes: int | None = None
    sort: CardOrder | None = None
    prices: PriceList | None = None
    solve: SolvedKey | None = None
    verify: bool = False
    suggest: bool = True
    fewest: GpuRange | None = None
    interconnect: Interconnect = "auto"
    host_memory_bytes: int | None = None
    context_bytes: int | None = None

    @property
    def ranks(self) -> bool:
        """Whether the configurations are ranked: a sweep, --solve and --min only list them."""
        return self.sweep is None and self.solve is None and self.fewest is None

    @property
    def asks_more(self) -> bool:
        """Whether it has a question beside its ladder: --why, --sweep or --solve."""
        return not (self.why is None and self.sweep is None and self.solve is None)


@dataclass(frozen=True, slots=True)
class CardPick:
    """A method's best configuration on a card: the first that surely fits, else the closest to it.

    With `borderline`, it is closer to the limit than the prediction error, and `fits` is false.
    `missed_by_bytes` is None if it fits. With `by_formula` it comes from the formula's lower bound,
    because no configuration of the method could be simulated: the configuration is short by more
    than that. `world_size` is the GPUs that it trains on. Costs are of all of them, in the currency
    of the price list. The uncertainty of the speed gives the range of `cost_per_million_tokens`,
    `cost_per_million_tokens_low` to `cost_per_million_tokens_high`. `own_data_cost` is for the
    training that `training_time` describes.
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
    cost_per_million_tokens: float | None = None
    cost_per_million_tokens_low: float | None = None
    cost_per_million_tokens_high: float | None = None
    training_time: TrainingTime | None = None
    borderline: bool = False
    world_size: int = 1
    own_data_cost: float | None = None


@dataclass(frozen=True, slots=True)
class CardPicks:
    """The pick of each method; None if no configuration of the method was predicted."""

    full: CardPick | None
    lora: CardPick | None
    qlora: CardPick | None


@dataclass(frozen=True, slots=True)
class PlanRemedy:
    """A change that would make a configuration of a method fit, or why there is none.

    `key` and `label` are of its configuration that is short by the least, without the configuration
    of --from, for which `yours` of the report is the answer. `change` is the cheapest change, or
    set of changes, that makes it fit and frees `frees_bytes`; `rung` is the changed configuration,
    as `--rung` reads it. With `basis` "simulated" it was simulated and fits. With "arithmetic" it
    needs a package that is not installed here, and `frees_bytes` is the most it can free. With
    "bound" it cannot be simulated, and `reason` says what it needs at least. `change`
    is None if no set of the changes that are known makes it fit; `reason` says what comes nearest.
    A set that is only borderline, because no other fits, has the `reason` "borderline".
    """

    method: Method
    key: str
    label: str
    change: str | None
    frees_bytes: int | None
    peak_device_bytes: int | None
    basis: Literal["simulated", "arithmetic", "bound"] | None
    rung: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class CardPlan:
    """A device of the plan: its usable memory, and the best configurations on it.

    `memory_bytes` is the advertised size, `total_bytes` what PyTorch reports, according to
    `total_source`. `usable_bytes` excludes the headroom; `context` is the part of it that tensors
    cannot use. `fitting` of `rungs` configurations surely fit, and `borderline` more may.
    `price_per_hour` is from the price list. `calibrated_by` is the probe that corrected the
    estimated speeds. `remedies` has an entry for each method without a configuration that
    fits, in a plan for one card. `yours` is the configuration of --from.
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
    price_per_hour: float | None = None
    calibrated_by: CalibratedBy | None = None
    remedies: tuple[PlanRemedy, ...] = ()
    yours: CardPick | None = None
    borderline: int = 0


@dataclass(frozen=True, slots=True)
class SweptPeak:
    """A configuration at one value of the sweep; None if not predicted.

    `peak_device_bytes` is the peak that `results` has for the configuration at this value; where it
    does not fit, the peak on a device with room for it. `least_bytes` is a lower bound: the peak of
    all tensors plus the context, without what the allocator holds beyond them. A `borderline` one
    is closer to the limit than the prediction error.
    """

    value: int
    least_bytes: int | None
    fits: bool | None
    peak_device_bytes: int | None = None
    borderline: bool = False


@dataclass(frozen=True, slots=True)
class SweepLine:
    """A configuration on a card at all values of the sweep.

    `largest_fitting` is the largest of the sweep's values that surely fits. `crossed_at` is the
    largest value of all that surely fits, found by simulation between these, as `--solve` does;
    None if all or none of them fit, or if it was not searched for. In reports of version 0.1 it is
    interpolated. `reason` says why nothing was predicted.
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
    """How the peaks grow: one line for each card and configuration."""

    key: SweptKey
    values: tuple[int, ...]
    lines: tuple[SweepLine, ...]


@dataclass(frozen=True, slots=True)
class FormulaTerm:
    """A term of the formula view: bytes per parameter times parameters, next to the simulation.

    `bytes_per_parameter` and `parameters` are None if there is no formula. `simulated_bytes` is the
    term's share of the simulated peak.
    """

    name: str
    bytes_per_parameter: float | None
    parameters: int | None
    formula_bytes: int | None
    simulated_bytes: int | None


@dataclass(frozen=True, slots=True)
class FormulaView:
    """How much of a peak per-parameter formulas explain, and the error of the 16-byte rule.

    `rule_bytes` is 16 bytes per parameter; `rule_error` is its error relative to the simulated peak
    memory of the device. `remarks` say where it is wrong.
    """

    terms: tuple[FormulaTerm, ...]
    formula_bytes: int
    rule_bytes: int
    rule_error: float
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FasterChange:
    """A change with which a configuration still fits and is faster, by simulation.

    `rung` is the changed configuration, as `--rung` reads it. `speedup` is against the unchanged
    one. `too_close` says that the estimates differ by less than their errors.
    """

    change: str
    rung: str
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    peak_device_bytes: int | None
    tokens_per_s: float
    speedup: float
    too_close: bool


@dataclass(frozen=True, slots=True)
class Faster:
    """What would make a configuration faster: `changes`, best first, of those `tried`.

    Of changes too close to call, the one with the lower peak comes first.
    """

    changes: tuple[FasterChange, ...]
    tried: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """One configuration at one micro-batch size in detail: the peak of every phase, and formulas.

    `peak_allocated_bytes` is the highest of all phases. What the allocator keeps beyond it and the
    context are added to it. `step` is where the time of a step goes, None if the speed is unknown.
    `mfu` is the model FLOPs utilization at that speed, None if that or the card's peak is unknown.
    `faster` is None if changes were not simulated: the configuration does not fit or has no speed.
    """

    label: str
    micro_batch_size: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    context_bytes: int
    peak_device_bytes: int
    phases: tuple[PhasePeak, ...]
    formula: FormulaView
    step: StepTime | None = None
    mfu: float | None = None
    faster: Faster | None = None
