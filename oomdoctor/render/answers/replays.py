"""What replays of a trace say, on the page of a snapshot."""

from __future__ import annotations

from pathlib import PurePath

from oomdoctor.records.inside.run import Place
from oomdoctor.records.inside.snapshot import ReplayedRun, SnapshotChange, SnapshotDevice
from oomdoctor.records.measurement import CATEGORY_WORDS
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section
from oomdoctor.units import DASH, format_bytes

_FITS = (
    Column("GPU"),
    Column("for tensors", 3, right=True),
    Column("as it was"),
    Column("expandable", detail="with expandable_segments:True: {}"),
    Column("half the rows", 2, detail="with half of the micro-batch: {}"),
)


def replay_sections(device: SnapshotDevice) -> list[Section]:
    """Whether it would have fitted other GPUs, and what would have let a request pass."""
    sections = []
    if device.oom is not None and (device.oom.changes or device.oom.changes_note):
        sections.append(Section("Enough to let the request pass", tuple(_enough(device))))
    if device.fits:
        ran_out = device.oom is not None
        title = "Would it have got past the request" if ran_out else "Would it have fitted"
        sections.append(Section(title, tuple(_fits(device))))
    return sections


def _enough(device: SnapshotDevice) -> list[Block]:
    assert device.oom is not None
    changes, note = device.oom.changes, device.oom.changes_note
    if not changes:
        return [Note(f"Unknown: {note}.")]
    blocks: list[Block] = [Facts(tuple(map(_change, changes)))]
    blocks.append(Note("Each alone is enough, by replay. What comes after it is not in the trace."))
    return blocks + ([Note(f"There may be others: {note}.")] if note else [])


def _change(change: SnapshotChange) -> tuple[str, str]:
    size = format_bytes(change.bytes)
    if change.kind == "setting":
        return "Setting", f"PYTORCH_CUDA_ALLOC_CONF={change.setting}"
    if change.kind == "free":
        return "Memory", f"{size} more"
    if change.kind == "growth":
        return "Leak", f"without the {size} that grew{at_line(change.where)}"
    if change.kind == "line":
        words = CATEGORY_WORDS[change.category or "other"]
        return "Line", f"without {size} of {words}{at_line(change.where)}"
    if change.kind == "micro_batch":
        return "Micro-batch", f"half of it ({change.confidence} confidence)"
    return "GPU", f"{change.gpu}"


def _fits(device: SnapshotDevice) -> list[Block]:
    blocks: list[Block] = []
    answered = [fit for fit in device.fits if fit.as_it_was is not None]
    if answered:
        rows = tuple(
            (
                fit.gpu,
                format_bytes(fit.capacity_bytes),
                *(
                    _run(run, "passes at" if device.oom is not None else "fits:")
                    for run in (
                        fit.as_it_was,
                        fit.with_expandable_segments,
                        fit.with_half_micro_batch,
                    )
                ),
            )
            for fit in answered
        )
        blocks.append(Grid(_FITS, rows).without_empty_columns())
    notes = dict.fromkeys(fit.note for fit in device.fits if fit.note is not None)
    blocks += [Note(f"Unknown: {note}.") for note in notes]
    halves = {fit.half_confidence for fit in answered if fit.half_confidence is not None}
    if halves:
        blocks.append(
            Note(
                "Half the rows: activations, logits and temporary blocks are half as large "
                f"({halves.pop()} confidence)."
            )
        )
    if answered and device.oom is not None:
        blocks.append(Note("What the training needs after that request is not in the trace."))
    return blocks


def _run(run: ReplayedRun | None, fits: str) -> str:
    if run is None:
        return ""
    if not run.fits:
        return f"needs {format_bytes(run.needed_bytes)}"
    retries = "" if not run.retries else f", {run.retries} retr{'y' if run.retries == 1 else 'ies'}"
    return f"{fits} {format_bytes(run.peak_reserved_bytes)}{retries}"


def line_of(where: Place | None) -> str:
    """The file without its folder, and the line."""
    if where is not None and where.module is not None:
        return where.module
    return DASH if where is None else f"{PurePath(where.file).name}:{where.line}"


def at_line(where: Place | None) -> str:
    """The line and its function, to follow a sentence."""
    if where is None:
        return ""
    return f", {where.module or f'{line_of(where)} in {where.function}'}"
