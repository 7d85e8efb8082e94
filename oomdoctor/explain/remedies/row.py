"""Which changes help, in which order, and what each gives back.

A row of `remedy_table` applies or not; what applies is computed and put in order: first what meets
the surest causes, then what gives back enough, then what cannot be computed, then what is too
little, and in each the least loss of speed and fidelity first. Nothing that cannot help is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from string import Template
from typing import Any

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.memory.terms import terms
from oomdoctor.records.diagnosis import Basis, Remedy
from oomdoctor.units import MIB, format_bytes


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change gives back in bytes (None: not computable), on what basis, and the sum.

    `at_least`: only the requested tensor was counted, the rest of the effect is not known.
    """

    frees_bytes: int | None
    basis: Basis
    arithmetic: str | None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One change. `cost`: 0 nothing lost, 1-2 a little speed, 3-4 speed, 5-6 fidelity, 7+ money.

    `change`, `note` and `lines` may hold $names that `values_of` knows. `when` says whether it can
    help at all, `effect` what it gives back.
    """

    key: str
    cost: int
    change: str
    when: Callable[[Case], bool]
    effect: Callable[[Case], Effect]
    lines: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


def always(case: Case) -> bool:
    """No condition beyond the cause that called for it."""
    del case
    return True


def rule(text: str) -> Callable[[Case], Effect]:
    """A rule of thumb, without bytes."""
    return lambda case: Effect(None, "rule", text)


def changing(fallback: str, *, request: float = 0.0, **changes: Any) -> Callable[[Case], Effect]:
    """What the closed form says a changed training needs less; else what the request tells.

    `request` is the share of the requested tensor that is not asked for any more.
    """
    return lambda case: difference(case, changes, fallback, request)


def difference(
    case: Case, changes: Mapping[str, Any], fallback: str, request: float = 0.0
) -> Effect:
    """The bytes between the training as it is and as changed, term by term.

    Only what lies on the device at the moment of the failure counts; 0 where nothing of it changes.
    """
    if case.sizes is not None and case.training is not None:
        before = {term.name: term.size_bytes for term in terms(case.sizes, case.training)}
        after = {
            term.name.removeprefix("quantised "): term.size_bytes
            for term in terms(case.sizes, replace(case.training, **changes))
        }
        shared = [
            (name, size, after[key])
            for name, size in before.items()
            if (key := name.removeprefix("quantised ")) in after and name not in case.elsewhere()
        ]
        saved = sum(old - new for _, old, new in shared)
        if saved > 0:
            parts = [
                f"{name} {format_bytes(old)} -> {format_bytes(new)}"
                for name, old, new in shared
                if old != new
            ]
            return Effect(saved, "arithmetic", ", ".join(parts))
        if case.training.tokens is not None and not request:
            return Effect(0, "arithmetic", "nothing of what lies on the device gets less")
    if request and (case.requested or 0) >= 50 * MIB:
        saved = round((case.requested or 0) * request)
        left = (case.requested or 0) - saved
        asked = format_bytes(case.requested)
        text = f"at least the request itself: {asked} -> {format_bytes(left)}"
        return Effect(saved, "arithmetic", f"{text}; {fallback}", at_least=True)
    return Effect(None, "rule", fallback)


def held(size: int | None, words: str) -> Effect:
    """Bytes that the message itself prints; a rule where it does not."""
    return Effect(size, "rule" if size is None else "measured", words)


def next_batch(case: Case) -> int | None:
    """The largest smaller batch that divides the present one and gives back enough, else 1."""
    if case.batch is None:
        return None
    smaller = [size for size in range(case.batch - 1, 0, -1) if case.batch % size == 0]
    for size in smaller:
        saved = difference(case, {"micro_batch_size": size}, "", 1 - size / case.batch).frees_bytes
        if saved is not None and case.needed is not None and saved >= case.needed:
            return size
    return smaller[-1 if case.needed is not None and case.sizes else 0] if smaller else 1


def values_of(case: Case) -> dict[str, str]:
    """The $names of change texts and lines."""
    setup = case.setup
    batch = next_batch(case)
    if batch is None or setup.micro_batch_size is None:
        steps = "(2 * YOUR_STEPS)"
    else:
        steps = str((setup.accumulation_steps or 1) * setup.micro_batch_size // batch)
    length = setup.sequence_length
    allowed, total = case.incident.event.allowed_bytes, case.capacity
    return {
        "batch": "YOUR_BATCH // 2" if batch is None else str(batch),
        "steps": steps,
        "was": "" if setup.micro_batch_size is None else f" (now {setup.micro_batch_size})",
        "length": "YOUR_LENGTH // 2" if length is None else str(max(1, length // 2)),
        "others": format_bytes(case.others),
        "allowed": format_bytes(allowed),
        "share": f"{(allowed or 0) / total:.2f}" if total else "the present one",
        "requested": format_bytes(case.requested),
        "alloc_conf": "PYTORCH_ALLOC_CONF" if _new_name(case) else "PYTORCH_CUDA_ALLOC_CONF",
        "workers": str(max(0, (setup.workers or 4) // 2)),
        "model": setup.model or "MODEL",
    }


def remedies(case: Case, keys: Mapping[str, int], table: Mapping[str, Row]) -> tuple[Remedy, ...]:
    """The rows of these keys that can help, in the order in which to try them.

    `keys` come in the order of their causes, with the rank of the cause's confidence (0 is high).
    """
    values = values_of(case)
    ranked: list[tuple[tuple[int, int, int, int], Remedy]] = []
    for place, (key, doubt) in enumerate(keys.items()):
        row = table[key]
        if not row.when(case):
            continue
        effect = row.effect(case)
        if effect.frees_bytes == 0:
            continue
        remedy = Remedy(
            change=_fill(row.change, values),
            frees_bytes=effect.frees_bytes,
            basis=effect.basis,
            lines={name: _fill(line, values) for name, line in row.lines.items()},
            arithmetic=None if effect.arithmetic is None else _fill(effect.arithmetic, values),
            note=None if row.note is None else _fill(row.note, values),
        )
        # What the message itself prints is held against the message, the closed form against it.
        needed = case.missing if effect.basis == "measured" else case.needed
        ranked.append(((doubt, _enough(effect, needed), row.cost, place), remedy))
    return tuple(remedy for _, remedy in sorted(ranked, key=lambda pair: pair[0]))


def _enough(effect: Effect, missing: int | None) -> int:
    if effect.frees_bytes is None or missing is None:
        return 1
    if effect.frees_bytes >= missing:
        return 0
    return 1 if effect.at_least else 2


def _fill(text: str, values: Mapping[str, str]) -> str:
    return Template(text).safe_substitute(values)


def _new_name(case: Case) -> bool:
    """Whether the message names the variable without CUDA, as torch 2.9 and later do."""
    lines = " ".join((case.message, *case.incident.lines))
    return "PYTORCH_ALLOC_CONF" in lines
