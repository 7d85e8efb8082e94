"""Chooses the remedies that help and puts them in order.

The order: first what treats the most certain causes; then what frees enough, then what cannot be
computed, then what frees too little; within each, the smallest loss of speed and quality first. A
change that cannot help is not listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.closing import closing
from oomdoctor.explain.remedies.row import Effect, Row, alloc_conf, fill, next_batch
from oomdoctor.explain.remedies.sets import COMPUTED, Choice
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.units import format_bytes


def values_of(case: Case) -> dict[str, str]:
    """The values of the $names in texts and lines."""
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
        "share": f"{(allowed or 0) / total:.2f}" if total else "less than all",
        "requested": format_bytes(case.requested),
        "alloc_conf": alloc_conf((case.message, *case.incident.lines)),
        "workers": str(max(0, (setup.workers or 4) // 2)),
        "model": setup.model or "MODEL",
    }


def remedies(
    case: Case, keys: Mapping[str, int], found: Sequence[Choice], table: Mapping[str, Row]
) -> tuple[Remedy, ...]:
    """The rows with these keys that can help, in the order in which to try them.

    `keys` come in the order of their causes, each with the rank of its confidence (0 is high).
    `found` are the changes that the closed form found for a training that is beyond the GPU.
    """
    values = values_of(case)
    ranked: list[tuple[tuple[float, ...], Remedy]] = []
    if case.beyond:
        # What is computed is compared as a whole; what is not computed comes after what is enough.
        ranked += [((*place, 0), remedy) for place, remedy in closing(case, found, table, values)]
        keys = {key: 3 for key in keys if key not in COMPUTED and key != "bigger_card"}
    for place, (key, doubt) in enumerate(keys.items()):
        row = table[key]
        if not row.when(case):
            continue
        effect = row.effect(case)
        if effect.frees_bytes == 0:
            continue
        remedy = Remedy(
            change=fill(row.change, values),
            frees_bytes=effect.frees_bytes,
            basis=effect.basis,
            lines={name: fill(line, values) for name, line in row.lines.items()},
            arithmetic=None if effect.arithmetic is None else fill(effect.arithmetic, values),
            note=None if row.note is None else fill(row.note, values),
            enough=_closes(case, effect),
            changes=case.rung_changes(effect.training),
            key=key,
        )
        if case.beyond and remedy.enough is not None:
            doubt = 0 if remedy.enough else 2
        if key == "sdpa" and case.scores_line is not None:
            doubt = -1  # the line that failed says so itself
        ranked.append(((doubt, _enough(effect, case.needed), row.cost, place), remedy))
    return tuple(remedy for _, remedy in sorted(ranked, key=lambda pair: pair[0]))


def _closes(case: Case, effect: Effect) -> bool | None:
    """Whether the change frees enough; None if the figures do not say."""
    if effect.frees_bytes is None or case.needed is None or effect.at_least:
        return None
    if case.beyond and effect.basis == "arithmetic":
        return None  # it is not part of what the training needs
    return effect.frees_bytes >= case.needed


def _enough(effect: Effect, missing: int | None) -> int:
    if effect.frees_bytes is None or missing is None:
        return 1
    if effect.frees_bytes >= missing:
        return 0
    return 1 if effect.at_least else 2
