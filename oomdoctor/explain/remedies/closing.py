"""The remedies for a training that needs more than the GPU has: what closes the gap comes first.

Each total is computed with the same arithmetic as the training's own. The order is what a change
costs: first what gives the same result, then LoRA, then QLoRA, then other hardware. What is not
enough alone comes last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from oomdoctor.analysis import fit
from oomdoctor.analysis.changes.sets import listed
from oomdoctor.analysis.changes.table import Tier
from oomdoctor.analysis.memory.overhead import device_total_bytes
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.reading.programs import libraries
from oomdoctor.explain.remedies.row import fill, parts_text
from oomdoctor.explain.remedies.sets import Choice, base_of, fits, rank, smallest, tight
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.records.configuration.config import changed_keys
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.stacks.writing.changed_lines import IN_FILES, ON_COMMAND_LINES
from oomdoctor.system import catalogue
from oomdoctor.units import format_bytes

_CARDS = (2, 4, 8, 16)
_HARDWARE = 1 + max(Tier)  # after all changes of the training
# Libraries that a set is written for, and where a change without a line for one takes it from.
_INSTEAD = ("transformers", "pytorch", "trl", "deepspeed")
_WIDEST = 92  # columns of a line that is made of several calls
_CALL = re.compile(r"(\w+)\((.*)\)")

Ranked = tuple[tuple[int, float, float], Remedy]


def closing(case: Case, choices: Sequence[Choice], values: Mapping[str, str]) -> list[Ranked]:
    """The computed remedies, each with its place: what closes the gap first.

    `choices` are the changes of the training that help.
    """
    return [*(_remedy(case, choice, values) for choice in choices), *_hardware(case, values)]


def no_way(case: Case, choices: Sequence[Choice]) -> str | None:
    """A sentence if no change of the training makes it fit; None if one does, or if it fits."""
    if not case.beyond or any(fits(case, choice.leaves_bytes) for choice in choices):
        return None
    best = smallest(case)
    if best is None:
        return None
    needs = ("at least " if case.at_least else "") + format_bytes(best.leaves_bytes)
    text = f"No change of the training fits {format_bytes(case.room)}"
    if not best.words:
        return f"{text}: it needs {needs}."
    both = " together need" if len(best.words) > 1 else " needs"
    card = smallest_card(case, best.leaves_bytes)
    holds = f" The smallest card that holds that is {_named(card)}." if card is not None else ""
    return f"{text}: even {listed(best.words)}{both} {needs}.{holds}"


def told(choice: Choice, method: str, values: Mapping[str, str]) -> Remedy:
    """A set of changes of a training with this `method`: what to do, without what it frees."""
    rows = [TABLE[key] for key in choice.keys]
    both = method == "full" and TABLE["qlora"] in rows  # QLoRA is 4-bit weights and adapters
    written = [*rows, TABLE["lora"]] if both else rows
    names = {**values, **_values(choice)}
    single = len(rows) == 1
    return Remedy(
        change=fill(rows[0].change, names) if single else f"Combine {listed(choice.words)}",
        frees_bytes=None,
        basis="rule",
        lines=_lines([{k: fill(v, names) for k, v in row.lines.items()} for row in written]),
        note=fill(rows[0].note, names) if single and rows[0].note else None,
        parts=() if single else choice.words,
        key="+".join(choice.keys),
    )


def _remedy(case: Case, choice: Choice, values: Mapping[str, str]) -> Ranked:
    written = told(choice, case.trained.config.method, values)
    closes = fits(case, choice.leaves_bytes)
    notes = ("borderline" if tight(case, choice.leaves_bytes) else None, written.note)
    remedy = replace(
        written,
        frees_bytes=(case.total or 0) - choice.leaves_bytes,
        basis="arithmetic",
        arithmetic=_sum(case, choice)
        if closes
        else parts_text(case, case.whole(case.trained), case.whole(choice.training)),
        note="; ".join(filter(None, notes)) or None,
        leaves_bytes=choice.leaves_bytes,
        enough=False if not closes else None if case.at_least else True,
        changes=changed_keys(base_of(case.trained), choice.training.config),
    )
    close, cost, place = rank(case, choice)
    return (close if closes else 2, cost, place), remedy


def _hardware(case: Case, values: Mapping[str, str]) -> list[Ranked]:
    """More GPUs of this size, and the smallest card that holds the training as it is."""
    assert case.total is not None  # it is beyond the card
    ranked: list[Ranked] = []
    config = case.trained.config
    shardable = case.trains and config.method != "qlora" and config.world_size == 1
    for count in _CARDS if shardable else ():
        sizes = {"world_size": count, "effective_batch_size": config.effective_batch_size * count}
        sharded = case.trained.changed(sharding="fsdp", **sizes)
        choice = Choice((), (), sharded, case.whole(sharded).size_bytes + case.context)
        if not fits(case, choice.leaves_bytes):
            continue
        row = TABLE["shard"]
        lines = {"shell": f"torchrun --nproc-per-node {count} train.py", **row.lines}
        remedy = Remedy(
            f"Shard across {count} GPUs of this size (FSDP or ZeRO-3)",
            case.total - choice.leaves_bytes,
            "arithmetic",
            lines,
            _sum(case, choice),
            "borderline" if tight(case, choice.leaves_bytes) else None,
            choice.leaves_bytes,
            None if case.at_least else True,
            key="shard",
        )
        ranked.append(((0, _HARDWARE, 0), remedy))
        break
    row = TABLE["bigger_card"]
    lines = {name: fill(line, values) for name, line in row.lines.items()}
    card = None if case.at_least else smallest_card(case, case.total)
    needs = format_bytes(case.total)
    if card is not None:
        text = holds_it(card.name, device_total_bytes(card)[0])
    elif case.at_least:
        text = f"it needs at least {needs} as it is"
    else:
        text = f"it needs {needs} as it is, more than any card known"
    enough = None if card is None else True
    remedy = Remedy(
        row.change, None, "arithmetic", lines, text, None, case.total, enough, key=row.key
    )
    return [*ranked, ((card is None, _HARDWARE, 1), remedy)]


def holds_it(name: str, total_bytes: int) -> str:
    """That a card is large enough for a training without a change."""
    return f"{name} ({format_bytes(total_bytes)}) is the smallest card known that holds it as it is"


def smallest_card(case: Case, size_bytes: int) -> GpuFacts | None:
    """The card with the least memory that surely holds so many bytes, the context among them.

    A card on which the size is borderline does not, as in a plan. None if there is no such card.
    """
    vendor = {"hip": "AMD", "xpu": "Intel"}.get(case.dialect, "NVIDIA")
    errors = fit.PeakErrors(catalogue.peak_errors(), None, None)
    method = "full" if case.training is None else case.training.config.method
    held = (size_bytes - case.context) * (1 + (errors.share(method, "reserved") or 0.0))
    gpus = catalogue.gpus()
    return fit.smallest_card(gpus, lambda room: room >= held, vendor=vendor, surely=True)


def _named(card: GpuFacts) -> str:
    return f"{card.name} ({format_bytes(device_total_bytes(card)[0])})"


def _sum(case: Case, choice: Choice) -> str:
    """The parts that add up to the new total."""
    moment = case.whole(choice.training)
    parts = [f"{term.name} {format_bytes(term.size_bytes)}" for term in moment.terms]
    return " + ".join((*parts, f"context {format_bytes(case.context)}"))


def _values(choice: Choice) -> dict[str, str]:
    training = choice.training
    return {
        "batch": str(training.micro_batch_size),
        "steps": str(training.accumulation_steps),
        "length": str(training.sequence_length),
        "world": str(training.config.world_size),
    }


def _lines(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The lines of all changes for each library; a change without one takes another library's.

    A file of settings takes none, nor does a command, and each setting is said once.
    """
    if len(rows) == 1:
        return dict(rows[0])
    named = {name for row in rows for name in row}
    lines = {}
    for library in (library_ for library_ in libraries() if library_ in named):
        wanted = (library, *_INSTEAD)
        chosen = (next((row[name] for name in wanted if name in row), "") for row in rows)
        lines[library] = "\n".join(_joined(filter(None, chosen)))
    for name in IN_FILES:
        if all(name in row for row in rows):
            said: dict[str, str] = {}
            for line in (line for row in rows for line in row[name].split("\n")):
                said.setdefault(line.partition(":")[0], line)
            lines[name] = "\n".join(said.values())
    for name in ON_COMMAND_LINES:
        if all(name in row for row in rows):
            lines[name] = " ".join(row[name] for row in rows)
    shell = [row["shell"] for row in rows if "shell" in row]
    return {**lines, "shell": "\n".join(shell)} if shell else lines


def _joined(lines: Iterable[str]) -> list[str]:
    """The lines, with calls of the same class made one call where that stays short."""
    joined: list[str] = []
    for line in lines:
        new = _CALL.fullmatch(line)
        for place, old in enumerate(joined):
            had = _CALL.fullmatch(old)
            if new is None or had is None or new[1] != had[1] or "..." in line + old:
                continue
            both = f"{new[1]}({had[2]}, {new[2]})"
            if len(both) <= _WIDEST:
                joined[place] = both
                break
        else:
            joined.append(line)
    return joined
