"""The page of a memory snapshot: each device, its peak by category and by line, what was free.

A memory snapshot as CSV: a row for each line of code that held memory at the peak.
Of two snapshots, a row for each line that holds more or less than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oomdoctor.package_data import data_of
from oomdoctor.records.facts.phases import PHASES
from oomdoctor.records.job.measurement import CATEGORY_WORDS, CategoryBytes
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import Place
from oomdoctor.records.report.snapshot import (
    HeldBlocks,
    ReplayedRun,
    SnapshotChange,
    SnapshotDevice,
    SnapshotDifference,
    SnapshotGrowth,
    SnapshotPeak,
)
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section
from oomdoctor.render.explain_page import answer_sections
from oomdoctor.render.formats.csv_rows import named, record_rows
from oomdoctor.render.words import counted, file_line
from oomdoctor.units import DASH, format_bytes, format_seconds

_FITS = (
    Column("GPU"),
    Column("for tensors", 3, right=True),
    Column("as it was"),
    Column("expandable", detail="with expandable_segments:True: {}"),
    Column("half the rows", 2, detail="with half of the micro-batch: {}"),
)


def replay_sections(device: SnapshotDevice) -> list[Section]:
    """Whether it would have fitted other GPUs, and what would have avoided the error."""
    sections = []
    if device.oom is not None and (device.oom.changes or device.oom.changes_note):
        sections.append(
            Section("Any one of these would have avoided the error", tuple(_enough(device)))
        )
    if device.fits:
        ran_out = device.oom is not None
        title = "Would this allocation have succeeded" if ran_out else "Would it have fitted"
        sections.append(Section(title, tuple(_fits(device))))
    return sections


def _enough(device: SnapshotDevice) -> list[Block]:
    assert device.oom is not None
    changes, note = device.oom.changes, device.oom.changes_note
    if not changes:
        return [Note(f"Unknown: {note}.")]
    blocks: list[Block] = [Facts(tuple(map(_enough_change, changes)))]
    blocks.append(Note("Checked by replay; a later allocation may still fail."))
    return blocks + ([Note(f"There may be others: {note}.")] if note else [])


def _enough_change(change: SnapshotChange) -> tuple[str, str]:
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
    return DASH if where is None else file_line(where)


def at_line(where: Place | None) -> str:
    """The line and its function, to follow a sentence."""
    if where is None:
        return ""
    return f", {where.module or f'{line_of(where)} in {where.function}'}"


_SHOWN = 8  # lines of code without --verbose
_COLUMNS = (
    Column("bytes", right=True),
    Column("blocks", 3, right=True, detail="blocks: {}"),
    Column("category"),
    Column("confidence", 4, spills=False),
    Column("your line"),
    Column("library line", 2, detail="in the library: {}"),
)
_SHOWN_CALLS = 2
_PLACE = ("file", "line", "function")
_CSV = (
    ("device", "0"),
    *named(("bytes", "count", "category", "confidence"), "1."),
    *named((f"{at}.{key}" for at in ("where", "library_where") for key in _PLACE), "1."),
)


def snapshot_sections(report: Report, look: Look) -> list[Section]:
    """The devices, those with most memory first, then the diagnosis of a request that failed."""
    verbose = look.verbose
    ordered = sorted(
        report.devices,
        key=lambda held: held.peak_allocated_bytes or held.allocated_bytes,
        reverse=True,
    )
    sections = []
    if not ordered:
        nothing = Note("The snapshot is empty: no GPU memory was in use.", "strong")
        sections.append(Section("", (nothing,)))
    if (written_by := report.settings.get("written_by")) is not None:
        sections.append(Section("", (Note(f"Written by {written_by}."),)))
    for difference in report.differences:
        sections += _difference(difference, verbose=verbose)
    for device in ordered if not report.differences or verbose else ():
        sections += _device(device, verbose=verbose)
    if report.diagnoses:
        sections += answer_sections(report, look, asks=False)
    return sections


def _difference(changed: SnapshotDifference, *, verbose: bool) -> list[Section]:
    allocated, reserved = _change(changed.allocated_bytes), _change(changed.reserved_bytes)
    verdict = f"GPU {changed.index}: {allocated} allocated and {reserved} reserved at the end."
    blocks: list[Block] = [Note(verdict, "strong")]
    if changed.blocks:
        shown = changed.blocks if verbose else changed.blocks[:_SHOWN]
        blocks.append(Grid(_COLUMNS, tuple(map(_row, shown))).without_empty_columns())
        rest = sum(b.bytes for b in changed.blocks[len(shown) :]) + changed.other_blocks_bytes
        blocks += [Note(f"Other lines: {_change(rest)}.")] if rest else []
    return [Section("", tuple(blocks))]


def _change(size: int) -> str:
    if not size:
        return "the same amount"
    return f"{format_bytes(abs(size))} {'more' if size > 0 else 'less'}"


def _device(device: SnapshotDevice, *, verbose: bool) -> list[Section]:
    head = Note(_verdict(device), "strong"), Facts(tuple(_facts(device)))
    sections = [Section("", head)]
    sections += replay_sections(device)
    held = device.peak or device.at_end
    when = "At the peak" if device.peak is not None else "At the end"
    sections += held_sections(held, when, verbose=verbose)
    sections.append(Section("Reserved but not allocated, at the end", (_fragmentation(device),)))
    return sections


def held_sections(held: SnapshotPeak, title: str, *, verbose: bool) -> list[Section]:
    """What held the memory at one moment, by category and by line of code."""
    sections = [Section(title, (_categories(held.categories),))]
    if held.blocks:
        shown = held.blocks if verbose else held.blocks[:_SHOWN]
        last = Column("module") if _is_module(shown) else _COLUMNS[-1]
        grid = Grid((*_COLUMNS[:-1], last), tuple(map(_row, shown)))
        rows: list[Block] = [grid.without_empty_columns()]
        rest = sum(b.bytes for b in held.blocks[len(shown) :]) + held.other_blocks_bytes
        if rest:
            more = "" if verbose else "; --verbose shows more"
            rows.append(Note(f"Other lines hold {format_bytes(rest)}{more}."))
        sections.append(Section("By line of code", tuple(rows)))
    return sections


def _verdict(device: SnapshotDevice) -> str:
    if device.peak_allocated_bytes is None:
        allocated, reserved = device.allocated_bytes, device.reserved_bytes
        when = "at the end; there is no history before it"
    else:
        allocated, reserved = device.peak_allocated_bytes, device.peak_reserved_bytes or 0
        when = "at the peak"
    sizes = f"{format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved"
    return f"GPU {device.index}: {sizes} {when}."


def _facts(device: SnapshotDevice) -> list[tuple[str, str]]:
    facts = []
    if device.oom is not None:
        oom = device.oom
        sizes = format_bytes(oom.requested_bytes), format_bytes(oom.free_bytes)
        asked = "tried to allocate {} with {} free".format(*sizes)
        facts.append(("Ran out", f"{asked}{at_line(oom.where)}"))
    if device.peak is not None:
        facts.append(("Peak", _moment(device.peak)))
    for grown in (device.growth, *device.more_growth):
        facts += growth_facts(grown) if grown is not None else []
    if device.retry_cost is not None:
        cost = device.retry_cost
        times = "once" if cost.count == 1 else f"{cost.count} times"
        took = "" if cost.elapsed_s is None else f" in at least {format_seconds(cost.elapsed_s)}"
        freed = f"{format_bytes(cost.released_bytes)} given back{took}"
        facts.append(("Retries", f"torch emptied its cache {times} to make room: {freed}"))
    facts.append(("History", _history(device)))
    return facts


def _moment(peak: SnapshotPeak) -> str:
    text = PHASES[peak.phase].when if peak.phase in PHASES else "in an unknown phase"
    if peak.phase == "backward" and peak.where is None and not _is_module(peak.blocks):
        text += " (torch runs it in C++)"
    step = "" if peak.step is None else f", optimizer step {peak.step}"
    return f"{text}{step}{at_line(peak.where)}"


def _history(device: SnapshotDevice) -> str:
    if device.peak is None:
        return "none was recorded; call torch.cuda.memory._record_memory_history() first"
    text = f"{device.events:,} events"
    if device.steps:
        text += f", {counted(device.steps, 'optimizer step')}"
    if device.truncated:
        text += "; it began when memory was already in use"
    if not device.has_stacks:
        text += "; it has no Python stacks, so lines and categories are unknown"
    return text


def _is_module(blocks: Sequence[HeldBlocks]) -> bool:
    """Whether the places are modules, as in a snapshot that oomdoctor wrote, and no lines."""
    places = [block.library_where for block in blocks if block.library_where is not None]
    return bool(places) and all(place.module for place in places)


def _categories(held: CategoryBytes) -> Grid:
    sizes = {word: held.of(category) for category, word in CATEGORY_WORDS.items()}
    total = sum(sizes.values()) or 1
    rows = tuple(
        (word, format_bytes(size), f"{size / total:.1%}")
        for word, size in sorted(sizes.items(), key=lambda item: -item[1])
        if size
    )
    return Grid(
        (Column("category"), Column("bytes", right=True), Column("share", right=True)), rows
    )


def _row(held: HeldBlocks) -> tuple[str, ...]:
    library = held.library_where if held.library_where != held.where else None
    return (
        format_bytes(held.bytes),
        f"{held.count:,}",
        CATEGORY_WORDS[held.category],
        held.confidence,
        line_of(held.where),
        "" if library is None else line_of(library),
    )


def _fragmentation(device: SnapshotDevice) -> Facts:
    fragments = device.fragmentation
    facts = [
        ("Free", f"{format_bytes(fragments.free_in_segments_bytes)} in total"),
        ("Largest", f"{format_bytes(fragments.largest_free_bytes)} in one piece"),
        (
            "Held open",
            f"{format_bytes(fragments.held_open_bytes)} in segments that are partly in use",
        ),
    ]
    if fragments.with_expandable_segments_bytes is not None and device.peak_reserved_bytes:
        less = device.peak_reserved_bytes - fragments.with_expandable_segments_bytes
        with_them = format_bytes(fragments.with_expandable_segments_bytes)
        facts.append(
            (
                "Expandable",
                f"with expandable_segments:True the reserved peak is {with_them}, "
                f"{format_bytes(max(0, less))} less (by replay)",
            )
        )
    return Facts(tuple(facts))


def growth_facts(grown: SnapshotGrowth) -> list[tuple[str, str]]:
    """The rows about one growth."""
    facts = [("Grows", f"{_how_fast(grown)}{at_line(grown.where)}")]
    calls = [at_line(call).removeprefix(", ") for call in grown.called_from if call != grown.where]
    if calls:
        facts.append(("Called from", ", ".join(calls[:_SHOWN_CALLS])))
    words = data_of("growth.toml")[grown.kind]
    facts.append(("Looks like", f"{words['looks_like']} ({grown.confidence} confidence)"))
    facts.append(("What helps", words["remedy"]))
    if grown.full_at_step is not None:
        facts.append(("Full", f"in {grown.unit} {grown.full_at_step:,} if it goes on like this"))
    return facts


def _how_fast(grown: SnapshotGrowth) -> str:
    each = format_bytes(grown.bytes_per_step)
    if grown.unit == "failure":
        times = "one caught failure" if grown.steps == 1 else f"each of {grown.steps} failures"
        return f"{each} stays after {times}"
    if grown.kind == "fragmentation":
        return f"{each} more is reserved, but not allocated, per {grown.unit}"
    units = {"step": "steps", "pass": "passes"}[grown.unit]
    since = "" if grown.since_step <= 2 else f" since {grown.unit} {grown.since_step}"
    return f"{each} per {grown.unit} over {grown.steps:,} {units}{since}, never freed"


def block_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows. Headings are the keys in JSON."""
    held_by = [(device.index, device.peak or device.at_end) for device in report.devices]
    lines = [(d.index, d) for d in report.differences] or held_by
    return record_rows(_CSV, ((index, held) for index, line in lines for held in line.blocks))
