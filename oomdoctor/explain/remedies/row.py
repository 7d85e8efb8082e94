"""What a remedy is: a row of `data/remedies.toml`, and how to compute what it frees.

By arithmetic if the training is known; otherwise by what a snapshot shows, of which a change saves
a share; otherwise by the request that failed, or a rule of thumb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import Template
from typing import Any, Literal

from oomdoctor.analysis.changes.table import smaller_batches
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.memory.moments import Moment
from oomdoctor.records.configuration.config import changed_keys
from oomdoctor.records.facts.optimizers import optimizer_named
from oomdoctor.records.job.measurement import CATEGORY_WORDS, BlockCategory, CategoryBytes
from oomdoctor.records.report.diagnosis import Basis
from oomdoctor.stacks.writing.changed_lines import said_by_programs
from oomdoctor.units import MIB, format_bytes

_HALF = 0.5
# Rules of thumb. Checkpointing keeps the input of each layer: what it frees depends on the model.
_CHECKPOINTED = 0.4
_ADAPTERS = 0.95  # of gradients and states: adapters have about 1% of the parameters
# 8-bit states take a quarter of 32-bit ones and half of 16-bit ones; which they are is not known.
_EIGHT_BITS = 0.5


@dataclass(frozen=True, slots=True)
class Effect:
    """How many bytes a change frees (None: cannot be computed), on what basis, and the arithmetic.

    `basis` is "rule" if a part of it is a rule of thumb. `at_least`: it may free more, because only
    a part of its effect was counted. `sets` are the keys of a rung that the change sets; if the
    training is known, to other values.
    """

    frees_bytes: int | None
    basis: Basis
    arithmetic: str | None
    at_least: bool = False
    sets: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One change. `cost`: 0 nothing lost, 1-2 a little speed, 3-4 speed, 5-6 quality, 7+ money.

    `change` starts with a verb. `change`, `note` and `lines` may contain the $names that
    `text_values.values_of` fills in. `settings` are the keys of a rung that it sets, whatever the
    training; how programs say them follows, and `own_lines` say the rest. `programs` are the names
    and kinds of those that can make it; empty for any. `when` says whether the change can help at
    all; `effect` says how much memory it frees.
    """

    key: str
    cost: int
    change: str
    when: Callable[[Case], bool]
    effect: Callable[[Case], Effect]
    own_lines: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()

    @property
    def lines(self) -> Mapping[str, str]:
        """What to write, by library."""
        return {**said_by_programs(self.settings), **self.own_lines}


def difference(
    case: Case, changes: Mapping[str, Any], fallback: str, request: float = 0.0
) -> Effect:
    """The bytes that the changed training saves, part by part.

    Counts only what is on the device at the moment of the failure; 0 if none of it changes.
    """
    sets = changes
    if case.training is not None:
        sets = changed_keys(case.training.config, case.training.changed(**changes).config)
    return replace(_difference(case, changes, fallback, request), sets=sets)


def _difference(case: Case, changes: Mapping[str, Any], fallback: str, request: float) -> Effect:
    before = case.moment()
    if before is not None and case.training is not None:
        after = case.moment(case.training.changed(**changes))
        assert after is not None  # because there is one before
        saved = before.size_bytes - after.size_bytes
        if saved > 0:
            return Effect(saved, "arithmetic", parts_text(case, before, after))
        if case.training.tokens and not request:
            return Effect(0, "arithmetic", "nothing on the device gets smaller")
    seen = _seen(case, changes, halves=request == _HALF)
    grows = case.training is not None and case.training.tokens > 0
    if seen is not None and not (before is not None and grows):
        return seen
    if request and (case.requested or 0) >= 50 * MIB and not case.gathered:
        saved = round((case.requested or 0) * request)
        left = (case.requested or 0) - saved
        asked = format_bytes(case.requested)
        text = f"at least the request itself: {asked} -> {format_bytes(left)}"
        return Effect(saved, "arithmetic", f"{text}; {fallback}", at_least=True)
    return Effect(None, "rule", fallback)


def _seen(case: Case, changes: Mapping[str, Any], *, halves: bool) -> Effect | None:
    """What a memory snapshot says that the changes free; None without one."""
    if case.snapshot is None:
        return None
    saved = saving(case.snapshot.held, changes, case.batch)
    return _halved(case.snapshot.held) if saved is None and halves else saved


def saving(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Effect | None:
    """What these changes of a training free of what was held; None if a snapshot cannot tell.

    `changes` has keys of a rung; `batch` is the micro-batch size, if it is known.
    """
    parts = list(_parts(held, changes, batch))
    counted = [part for part in parts if part.frees_bytes]
    if changes.get("quantization"):
        # How much of the weights can be quantized depends on the model: embeddings cannot.
        more = Effect(0, "arithmetic", "4-bit weights save more", at_least=True)
        counted += [more] if counted else []
        parts = counted
    return _sum(counted) if parts else None


def _sum(parts: Sequence[Effect]) -> Effect:
    return Effect(
        sum(part.frees_bytes or 0 for part in parts),
        "rule" if any(part.basis == "rule" for part in parts) else "arithmetic",
        ", ".join(part.arithmetic or "" for part in parts),
        any(part.at_least for part in parts),
    )


def _parts(held: CategoryBytes, changes: Mapping[str, Any], batch: int | None) -> Iterator[Effect]:
    if changes.get("loss", "default") != "default":
        yield _part(held, "logits")
    if changes.get("activation_checkpointing", "none") != "none":
        yield _part(held, "activations", _CHECKPOINTED, "about")
    if "micro_batch_size" in changes and batch:
        share = 1 - changes["micro_batch_size"] / batch
        yield _part(held, "activations", share)
        yield _part(held, "logits", share)
    moved = changes.get("offload") in ("optimizer", "parameters")
    row = optimizer_named(str(changes.get("optimizer")))
    if changes.get("method") in ("lora", "qlora"):
        yield _part(held, "gradients", _ADAPTERS, "about")
        yield _part(held, "optimizer", _ADAPTERS, "about")
    elif moved or (row is not None and (row.paged or row.moments == 0)):
        yield _part(held, "optimizer")
    elif row is not None and row.eight_bit:
        yield _part(held, "optimizer", _EIGHT_BITS, "at least")


def _halved(held: CategoryBytes) -> Effect | None:
    """What half the batch or half the length frees."""
    parts = [_part(held, "activations", 0.5), _part(held, "logits", 0.5)]
    parts = [part for part in parts if part.frees_bytes]
    return _sum(parts) if parts else None


def _part(
    held: CategoryBytes,
    category: BlockCategory,
    share: float = 1.0,
    word: Literal["", "about", "at least"] = "",
) -> Effect:
    """A share of what a category held. With a `word` it may be more; "about" is a rule of thumb."""
    size = held.of(category)
    which = "all" if share == 1 else f"{word} {share:.0%}".strip()
    text = f"{which} of {format_bytes(size)} of {CATEGORY_WORDS[category]} in the snapshot"
    basis: Basis = "rule" if word == "about" else "arithmetic"
    return Effect(round(size * share), basis, text, at_least=bool(word))


def parts_text(case: Case, before: Moment, after: Moment) -> str:
    """What becomes of each part; of the peak as a whole if it is then at another moment."""
    if before.when != after.when:
        peaks = (before.size_bytes + case.context, after.size_bytes + case.context)
        old, new = (format_bytes(size) for size in peaks)
        return f"peak {old} -> {new} {after.when}"
    olds, news = (
        {t.name.removeprefix("quantized "): t.size_bytes for t in moment.terms}
        for moment in (before, after)
    )
    return ", ".join(
        f"{name} {format_bytes(olds.get(name, 0))} -> {format_bytes(news.get(name, 0))}"
        for name in dict.fromkeys((*olds, *news))
        if olds.get(name) != news.get(name)
    )


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with its $names replaced."""
    return Template(text).safe_substitute(values)


def printed(size: int | None, words: str) -> Effect:
    """Bytes that the message itself prints; a rule of thumb if it prints none."""
    return Effect(None, "rule", None) if size is None else Effect(size, "measured", words)


def next_batch(case: Case) -> int | None:
    """The largest smaller batch that divides the current one and frees enough, else 1."""
    if case.batch is None:
        return None
    if case.batch_divisor is not None:
        return max(1, case.batch // case.batch_divisor)
    smaller = smaller_batches(case.batch)
    for size in smaller:
        saved = difference(case, {"micro_batch_size": size}, "", 1 - size / case.batch).frees_bytes
        if saved is not None and case.needed is not None and saved >= case.needed:
            return size
    return smaller[-1 if case.needed is not None and case.sizes else 0] if smaller else 1
