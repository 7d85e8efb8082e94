"""The changes of the common table that help a training, and the cheapest sets with which it fits.

The closed form judges them. What a change is called, sets, costs and excludes is said by the table;
its lines are those of the row of `explain` with its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from oomdoctor.analysis.changes.search import Search, Verdict
from oomdoctor.analysis.changes.sets import ChangeSet, Lattice
from oomdoctor.analysis.changes.table import TABLE, Change, Tier
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.conditions import trl_computes_loss
from oomdoctor.explain.training.assumed import Training
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.architectures import LIGER_FAMILIES
from oomdoctor.records.facts.optimizers import is_paged, optimizer_named

_CLOSE = 0.9  # of the room; the closed form is up to about 10% below what a GPU then uses
# Of each, the cheapest set is proposed.
_KINDS = ((Tier.SAME,), (Tier.BATCH,), (Tier.LORA,), (Tier.QLORA,), (Tier.SHORTER, Tier.SHORTEST))


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of changes, the training that it leads to, and what that needs at its peak.

    `keys` are the rows of `explain` that say how the changes are made, and `words` name them.
    """

    keys: tuple[str, ...]
    words: tuple[str, ...]
    training: Training
    leaves_bytes: int
    tier: Tier = Tier.SAME


@dataclass(slots=True)
class ClosedForm:
    """A judge that computes peaks. With `surely`, what is too close to the room is borderline.

    With `own_line`, what stores attention scores is short: the line that failed makes them.
    `sized` are the peaks that were computed.
    """

    case: Case
    surely: bool = True
    own_line: bool = False
    sized: dict[TrainConfig, int] = field(default_factory=dict)

    @property
    def usable_bytes(self) -> int:
        """What the training may need, its context included."""
        return (self.case.total or 0) - (self.case.needed or 0)

    def judge(self, sets: Sequence[ChangeSet]) -> list[Verdict]:
        """Compute what each set needs."""
        return [self._verdict(changes.config) for changes in sets]

    def least_bytes(self, config: TrainConfig) -> int:
        """What a configuration needs, the context included."""
        if config not in self.sized:
            moment = self.case.whole(replace(self.case.trained, config=config))
            self.sized[config] = moment.size_bytes + self.case.context
        return self.sized[config]

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        """Not asked of a formula: each set is computed."""
        del more, less
        return False

    def _verdict(self, config: TrainConfig) -> Verdict:
        needs = self.least_bytes(config)
        if not fits(self.case, needs) or (self.own_line and config.attention == "eager"):
            return Verdict("short", needs)
        close = self.surely and tight(self.case, needs)
        return Verdict("borderline" if close else "fits", needs)


def tight(case: Case, size_bytes: int) -> bool:
    """Whether a total fits, but closer to the room than the closed form is exact."""
    return case.room is not None and _CLOSE * case.room < size_bytes and fits(case, size_bytes)


def fits(case: Case, size_bytes: int) -> bool:
    """Whether a total fits into what this process may use, and frees what was missing."""
    return case.total is not None and size_bytes <= case.total - (case.needed or 0)


def choices(case: Case) -> list[Choice]:
    """Each change alone, and the cheapest sets with which the training fits."""
    form = ClosedForm(case)
    return [*_alone(form), *_together(form)]


def smallest(case: Case) -> Choice | None:
    """The set of changes that needs the least memory, whatever it costs."""
    form = ClosedForm(case)
    fronts = [
        _needed(form, lattice, front) for lattice in _lattices(case) for front in lattice.fronts()
    ]
    return min(fronts, key=lambda choice: choice.leaves_bytes, default=None)


def rank(case: Case, choice: Choice) -> tuple[bool, float, float]:
    """Its place among what would be enough: what surely is, then by cost, then single changes.

    Where the line that failed stores attention scores, what still stores them comes last, and the
    one change that does not is not held up by being close to the room.
    """
    line, several = case.scores_line is not None, len(choice.keys) > 1
    stored = line and choice.training.config.attention == "eager"
    close = tight(case, choice.leaves_bytes) and (several or stored or not line)
    cost = cost_of(choice.keys)
    assert cost is not None  # a choice is made of changes of the table
    return close, choice.tier, cost[1] + len(TABLE) * 2 * stored


def cost_of(keys: Sequence[str], *, several: bool = False) -> tuple[int, int] | None:
    """The tier and the place of a set by the keys of its rows, single changes before several.

    None if a row is no change of the table.
    """
    if not all(key in _PLACES for key in keys):
        return None
    tier = max(_PLACES[key][1] for key in keys)
    return tier, 1 + _PLACES[keys[0]][0] + len(TABLE) * (several or len(keys) > 1)


def _alone(form: ClosedForm) -> list[Choice]:
    """Each change alone, as far as it needs to go: the first step that surely fits.

    Otherwise the first that is borderline, otherwise the last. Of changes with the same row, such
    as shorter sequences, the first that fits, otherwise the last.
    """
    case, kept = form.case, dict[str, Choice]()
    for lattice in _lattices(case):
        for steps in lattice.singles():
            made = [_choice(form, step) for step in steps]
            enough = [choice for choice in made if fits(case, choice.leaves_bytes)]
            surely = [choice for choice in enough if not tight(case, choice.leaves_bytes)]
            best = (surely or enough or made[-1:])[0]
            (key,) = best.keys
            before = kept.get(key)
            if before is not None and fits(case, before.leaves_bytes):
                continue
            if best.leaves_bytes < (case.total or 0):
                kept[key] = best
    return list(kept.values())


def _together(form: ClosedForm) -> list[Choice]:
    """The cheapest set of at least two changes that fits, of each kind; none if none fits.

    A set is left out if it only adds changes to one that fits without them.
    """
    minimal: list[Choice] = []
    for tiers in _KINDS:
        best = _cheapest(form, tiers)
        if best is not None and not any(set(choice.keys) <= set(best.keys) for choice in minimal):
            minimal.append(best)
    return [choice for choice in minimal if len(choice.keys) > 1]


def _cheapest(form: ClosedForm, tiers: Sequence[Tier]) -> Choice | None:
    """The first set of the tiers: one that surely fits, otherwise one that is borderline."""
    case = form.case
    for own_line in (True, False) if case.scores_line is not None else (False,):
        for surely in (True, False):
            answer = Search(
                base_of(case.trained),
                None,
                replace(form, surely=surely, own_line=own_line),
                offers=lambda change: offered(case, change),
                adapt=lambda config: completed(case, config),
                tiers=tiers,
            ).answer()
            fitting = [changes for changes, judged in answer.fitting if judged.outcome == "fits"]
            if fitting:
                return _choice(form, fitting[0])
            if not any(fits(case, verdict.needs_bytes or 0) for _, verdict in answer.judged):
                return None
    return None


def _needed(form: ClosedForm, lattice: Lattice, chosen: ChangeSet) -> Choice:
    """The set without the changes that free nothing, the dearest first."""
    for change in reversed(chosen.changes):
        less = lattice.milder(chosen, change.group)[:1]
        gone = less and change not in less[0].changes
        if gone and form.least_bytes(less[0].config) <= form.least_bytes(chosen.config):
            chosen = less[0]
    return _choice(form, chosen)


def _choice(form: ClosedForm, chosen: ChangeSet) -> Choice:
    case = form.case
    keys = tuple(_key(case, change) for change in chosen.changes)
    words = tuple(
        "4-bit weights" if key == "quantized_load" else change.text(chosen.config)
        for key, change in zip(keys, chosen.changes, strict=True)
    )
    training = replace(case.trained, config=chosen.config)
    return Choice(keys, words, training, form.least_bytes(chosen.config), chosen.tier)


def _key(case: Case, change: Change) -> str:
    """The key of the row of `explain` that says how a change is made."""
    if change.key == "qlora" and not case.trains:
        return "quantized_load"
    return _row_key(change.key)


def _row_key(key: str) -> str:
    return "shorter_sequence" if key == "shortest_sequence" else key


def _lattices(case: Case) -> Iterator[Lattice]:
    for tier in Tier:
        yield Lattice(
            base_of(case.trained),
            tier,
            lambda change: offered(case, change),
            lambda config: completed(case, config),
        )


def of_simulation(chosen: ChangeSet) -> Choice:
    """A set that a simulation found for a training that is known as a rung."""
    keys = tuple(_row_key(change.key) for change in chosen.changes)
    words = tuple(change.text(chosen.config) for change in chosen.changes)
    return Choice(keys, words, Training(chosen.config), 0, chosen.tier)


def offered(case: Case, change: Change) -> bool:
    """Whether the closed form can compute a change, and it can help this training."""
    helps = _HELPS.get(change.key)
    return helps is not None and helps(case, case.trained)


def base_of(training: Training) -> TrainConfig:
    """The rung to change: several GPUs that share nothing are data-parallel."""
    config = training.config
    alone = config.sharding == "none" and config.world_size > 1
    return replace(config, sharding="ddp") if alone else config


def completed(case: Case, config: TrainConfig) -> TrainConfig:
    """A changed rung with what goes with its method: adapters are trained under autocast."""
    before = case.trained.config
    if not case.trains and config.method != before.method:
        return replace(config, kbit_prepare="none")
    return with_autocast(before, config)


def with_autocast(before: TrainConfig, config: TrainConfig) -> TrainConfig:
    """A changed rung; adapters are trained under autocast if the training had none."""
    if config.method == before.method or config.autocast_dtype != "none":
        return config
    return replace(config, autocast_dtype="bfloat16")


def _own_states(case: Case, training: Training) -> bool:
    """Whether the states are on the device and as wide as the optimizer makes them."""
    on_device = not training.states_on_host and not is_paged(training.config.optimizer)
    return case.trains and on_device and not training.master_weights


def _whole_states(case: Case, training: Training) -> bool:
    """Whether there are states of all parameters, in the optimizer's own type."""
    return _own_states(case, training) and training.config.method == "full"


def _wide_states(case: Case, training: Training) -> bool:
    row = optimizer_named(training.config.optimizer)
    return _whole_states(case, training) and not (row is not None and row.lean)


def _grows(case: Case, training: Training) -> bool:
    """Whether what grows with batch and length is known."""
    return case.trains and training.tokens > 0


def _sdpa(case: Case, training: Training) -> bool:
    return _grows(case, training) and case.sizes is not None and not case.sizes.capped_scores


def _liger(case: Case, training: Training) -> bool:
    assert case.sizes is not None  # there is a total
    return _grows(case, training) and any(n in case.sizes.model_type for n in LIGER_FAMILIES)


def _offload(case: Case, training: Training) -> bool:
    on_device = training.master_weights and not training.states_on_host
    movable = _own_states(case, training) or (case.trains and on_device)
    return movable and training.config.method == "full"


def _in_backward(case: Case, training: Training) -> bool:
    """Only in a loop of one's own: the trainers of the libraries step after the backward pass."""
    own = case.framework in (None, "pytorch") and not training.mixed_by_deepspeed
    return own and _grows(case, training) and _whole_states(case, training)


_HELPS: Mapping[str, Callable[[Case, Training], bool]] = {
    "smaller_batch": _grows,
    "sdpa": _sdpa,
    "fused_optimizer": _own_states,
    "checkpointing": _grows,
    "chunked": lambda case, training: trl_computes_loss(case) and _grows(case, training),
    "liger": _liger,
    "shard": lambda case, training: (
        case.trains
        and training.config.world_size > 1
        and training.stage < 3
        and training.config.method != "qlora"
    ),
    "quantized_experts": lambda case, training: (
        case.sizes is not None and case.sizes.experts > 0 and bool(training.stacked_experts)
    ),
    "adamw_8bit": _wide_states,
    "paged_adamw": _whole_states,
    "half_weights": lambda case, training: training.config.method != "qlora",
    "offload_optimizer": _offload,
    "optimizer_in_backward": _in_backward,
    "lora": lambda case, training: case.trains,
    "qlora": lambda case, training: not case.trains or training.stage < 3,
    "shorter_sequence": _grows,
    "shortest_sequence": _grows,
}
OF_SOME_PROGRAMS = frozenset({"chunked", "optimizer_in_backward"})
"""Changes that only some programs can make: a diagnosis names them if its training can."""
_PLACES: dict[str, tuple[int, Tier]] = {}
"""The place and the tier of a row: of the changes that share one, those of the first."""
for _place, _change in enumerate(TABLE):
    _PLACES.setdefault(_row_key(_change.key), (_place, _change.tier))
_PLACES["quantized_load"] = _PLACES["qlora"]
# Keys of the rows that the closed form computes.
COMPUTED = frozenset({*_HELPS, "quantized_load"} - {"shortest_sequence"})
