"""The summary of `run`: does it fit, where is the peak, what helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from oomdoctor.analysis.fit import USUAL_HEADROOM, headroom_bytes
from oomdoctor.records.job.machine import real_name
from oomdoctor.records.job.result import OUTCOME_WORDS
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import (
    FasterStep,
    LaunchedStep,
    Place,
    RankMemory,
    RankOom,
    RunDevice,
    SmallestGpu,
    UnknownSize,
    UnknownSizes,
    fullest,
)
from oomdoctor.records.report.user_training import AppliedRemedy
from oomdoctor.render import blocks
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Look, Note, Section, Verbatim
from oomdoctor.render.charts.time_chart import time_says
from oomdoctor.render.charts.time_parts import step_bar, step_legend, step_table
from oomdoctor.render.explain_page import answer_sections
from oomdoctor.render.formats.csv_rows import named, record_rows, scalars
from oomdoctor.render.proof import proof_lines
from oomdoctor.render.snapshot.snapshot_page import held_sections
from oomdoctor.render.words import calibrated_by_words, counted, curve, file_line
from oomdoctor.units import DASH, format_bytes, format_percent, format_seconds

_SHOWN_LINES = 5
_NO_VALUES = (
    "Emulated: memory is exact{but}. No kernel ran, so losses and other values mean nothing, and "
    "neither do times."
)
_BUT = " except for what the warnings name"
_UNLESS = ", unless a line that reads unknown values decides about it"
_RANGE = (
    "Emulated: memory is not exact, because {what} on values that no kernel computed. Losses and "
    "times mean nothing either."
)
_SAME = (
    "Emulated: {what} on values that no kernel computed, but the peak is the same at both ends. "
    "Losses and times mean nothing."
)
_INEXACT = ("inexact", "no_values", "cut_off")
_TAKEN = {"0": "zero", "max": "the most that the shapes allow", "half": "half of it"}
_WIDTH = 48
_SHOWN_KERNELS = 3
_CELLS: blocks.Cells[RankMemory] = (
    (Column("outcome", tone=True), lambda r: OUTCOME_WORDS[r.outcome]),
    (blocks.figures("allocated"), lambda r: format_bytes(r.peak_allocated_bytes)),
    (blocks.figures("reserved"), lambda r: format_bytes(r.peak_reserved_bytes)),
    (
        blocks.figures("on device", 3, "{} on the device"),
        lambda r: format_bytes(r.peak_device_bytes),
    ),
    (blocks.figures("left", 4, "{} left"), lambda r: format_bytes(r.headroom_bytes)),
    (
        Column("phase", 1, detail="in {}"),
        lambda r: r.peak_phase if r.peak_phase != "unknown" else DASH,
    ),
    (Column("module", 2, detail="module {}"), lambda r: r.peak_module or DASH),
    (Column("line", 2, detail="line {}"), lambda r: file_line(r.where) if r.where else DASH),
    (
        Column("library line", 5, detail="in the library: {}"),
        lambda r: file_line(r.library_where) if r.library_where else "",
    ),
)


def run_sections(report: Report, look: Look) -> list[Section]:
    """The verdict first, then the ranks, memory over time, and the diagnosis.

    For a training on a real GPU that ended well, a line or two are enough.
    """
    verbose = look.verbose
    sections = [Section("", tuple(_head(report)))]
    worst = fullest(report.ranks)
    real = report.device is not None and report.device.kind == "real"
    if worst is not None and (verbose or not real or report.status != "ok"):
        sections.append(Section("", (rank_grid(report.ranks, together=not verbose),)))
        lines = None if look.drawn else curve_lines(worst, signs=look.signs)
        if lines is not None:
            one_of = len(report.ranks) > 1
            title = f"Memory of rank {worst.rank}" if one_of else "Memory over time"
            sections.append(Section(title, (lines,)))
        if verbose and worst.steps_memory:
            sections.append(Section("Steps", (step_grid(worst),)))
    sections += [*_sizes(report.unknown_sizes), *_unknown(report.ranks)]
    if report.step is not None:
        sections += _step(report.step, look)
    if report.diagnoses:
        sections += answer_sections(report, look, asks=False)
    if report.applied is not None and report.applied.proof is not None:
        applied = report.applied
        sections.append(Section(f"Tried: {applied.change}", (Verbatim(_proof_of(applied)),)))
    if report.max_peak is None or report.max_peak.above_bytes:
        for device in report.devices:
            ran_out = worst is not None and worst.outcome == "oom" and not worst.went_past
            when = "when it ran out" if ran_out else "at the highest peak"
            title = f"What GPU {device.index} held {when}"
            at_end = device.at_end if ran_out or device.peak is None else device.peak
            held = at_end if device.oom is None else device.oom.held
            sections += held_sections(held, title, verbose=verbose)
    return sections


def _step(step: LaunchedStep, look: Look) -> list[Section]:
    """Where the time of the last step would go, and what is not part of it."""
    title = "Where the time would go"
    if step.number is not None:
        title += f": step {step.number} of rank {step.rank}"
    parts: list[Block] = []
    if step.time is None:
        parts.append(Note(f"Not estimated: {step.reason}.", "normal"))
    else:
        says = time_says(step.time)
        if step.uncertainty is not None:
            says += f" {look.plus_minus}{format_percent(step.uncertainty)}."
        if step.calibrated_by is not None:
            says += f" Calibrated by {calibrated_by_words(step.calibrated_by, 'this card')}."
        parts += [Note(says, "normal"), step_table(step.time)]
        if not look.drawn:
            parts += [Verbatim((step_bar(step.time),)), Note(step_legend(step.time))]
    if step.unknown_kernels:
        count = sum(kernel.count for kernel in step.unknown_kernels)
        names = list(dict.fromkeys(kernel.name for kernel in step.unknown_kernels))
        shown = ", ".join(names[:_SHOWN_KERNELS]) + ", ..." * (len(names) > _SHOWN_KERNELS)
        parts.append(
            Note(f"Unknown kernels, not counted: {counted(count, 'launch', 'es')} ({shown}).")
        )
    if step.trace is not None:
        parts.append(Facts((("Trace", f"{step.trace}; open it at https://ui.perfetto.dev"),)))
    sections = [Section(title, tuple(parts))]
    if step.faster and step.time is not None:
        whole = step.time.seconds
        cells: blocks.Cells[FasterStep] = (
            (Column("change"), lambda each: each.change),
            (blocks.figures("at best"), lambda each: format_seconds(each.seconds)),
            (blocks.figures("speedup", 1), lambda each: f"{whole / each.seconds:.2f}x"),
        )
        sections.append(
            Section("What would make it faster", (blocks.table_of(step.faster, cells),))
        )
    return sections


def _proof_of(applied: AppliedRemedy) -> tuple[str, ...]:
    return (*proof_lines(applied), "", *applied.diff.splitlines())


def _head(report: Report) -> list[Block]:
    device, worst = report.device, fullest(report.ranks)
    parts: list[Block] = [Note(_verdict(report, device, worst), "strong")]
    facts = [("Case", report.run_dir)] if report.run_dir is not None else []
    if worst is None:
        return [*parts, Facts(tuple(facts))] if facts else parts
    facts.insert(0, ("Steps", _stopped(report.ranks)))
    if worst.not_reached:
        calls = ", ".join(
            f"{_called(call.function)} in {call.file}:{call.line}" for call in worst.not_reached
        )
        facts.insert(1, ("Not run", f"{calls}; --steps all runs what comes after the stop"))
    if worst.oom is not None:
        facts += _ran_out(worst.oom, explained=bool(report.diagnoses))
    if (allowed := report.max_peak) is not None:
        peak, limit = format_bytes(allowed.peak_bytes), format_bytes(allowed.limit_bytes)
        facts.append(("Allowed", f"{limit} on the device; the peak is {peak}"))
    if worst.headroom_bytes is not None and worst.outcome == "fits" and device is not None:
        facts.append(("Left", _left(worst.headroom_bytes, device)))
    if (batch := report.larger_batch) is not None:
        size, row = f"{batch.should_fit:,}", format_bytes(batch.bytes_per_row)
        fits = f"a micro-batch of {size} instead of {batch.micro_batch_size:,} should fit too"
        facts.append(("Batch", f"{fits}: a row takes up to {row}"))
    if report.smallest_gpu is not None:
        facts.append(("Smallest", _smallest(report.smallest_gpu, worst)))
        facts += _shares(report.smallest_gpu, device)
    elif _broke_off(report, worst):
        facts.append(("Smallest", "unknown: it broke off before memory repeated"))
    parts += [Facts(tuple(facts))] if facts else []
    if device is not None and device.kind == "emulated":
        inexact = any(warn.code in _INEXACT for warn in report.warnings)
        if report.unknown_sizes is not None:
            ends = report.unknown_sizes
            same = _is_sure(ends) and ends.lower_bytes == ends.upper_bytes is not None
            parts.append(Note((_SAME if same else _RANGE).format(what=_what_depends(ends))))
        else:
            decided = any(rank.unknown_branches for rank in report.ranks)
            but = (_BUT if inexact else "") + (_UNLESS if decided else "")
            parts.append(Note(_NO_VALUES.format(but=but)))
    return parts


def _called(name: str) -> str:
    """A call by its name, or an assignment."""
    return f"{name}()" if name.isidentifier() else name


def _what_depends(unknown: UnknownSizes) -> str:
    if all(size.is_branch for size in unknown.sizes):
        return "it branches"
    return "sizes depend"


def _smallest(card: SmallestGpu, worst: RankMemory) -> str:
    """The card, and why it has room although it is smaller than what was needed here."""
    why = ""
    if worst.peak_reserved_bytes > card.total_bytes:
        why = ": PyTorch would release cached memory there"
    elif (worst.peak_device_bytes or 0) > card.total_bytes:
        why = ": CUDA itself takes less there"
    return f"{card.name} ({format_bytes(card.total_bytes)}) would do{why}"


def _shares(card: SmallestGpu, device: RunDevice | None) -> list[tuple[str, str]]:
    """That engines would hold another size on the smallest card."""
    if not card.sized_by_card or device is None:
        return []
    size = "less" if card.total_bytes < device.total_bytes else "more"
    engines = " and ".join(card.sized_by_card)
    takes = "takes" if len(card.sized_by_card) == 1 else "take"
    return [("", f"{engines} {takes} a share of the card: there, {size} than was counted here")]


def _broke_off(report: Report, worst: RankMemory) -> bool:
    """Whether an emulated run ended for another reason before it showed what it needs."""
    emulated = report.device is not None and report.device.kind == "emulated"
    return emulated and report.status in ("error", "interrupted") and not worst.repeats


def _verdict(report: Report, device: RunDevice | None, worst: RankMemory | None) -> str:
    on = f" on {_device(device)}" if device is not None else ""
    code = report.exit_code_of_command
    end = f"the command ended with exit code {code}"
    on_host = report.status == "no" and (worst is None or worst.outcome != "oom")
    if on_host:
        first = report.diagnoses[0].resource if report.diagnoses else ""
        what = "shared memory" if first == "shm" else "host memory"
        return f"Out of {what}: {end}."
    if worst is None:
        return f"Nothing was measured{on}: {end}."
    least = "at least " if any(warn.code == "cut_off" for warn in report.warnings) else ""
    peak = f"peak {least}{_peak(report.unknown_sizes, worst).removeprefix(least)} reserved"
    if worst.went_past:
        ended = report.exit_code_of_command == 0 and worst.stopped != "past"
        sure = _is_sure(report.unknown_sizes) and (worst.repeats or ended)
        needs = "needs" if sure else "needs at least"
        short = "" if not worst.short_bytes else f", short by {format_bytes(worst.short_bytes)}"
        rank = f"rank {worst.rank} " if len(report.ranks) > 1 else "it "
        size = format_bytes(worst.peak_device_bytes)
        return f"Out of GPU memory{on}: {rank}{needs} {size} on the device{short}."
    if worst.outcome == "oom":
        return f"Out of GPU memory{on}: {peak}; {end}."
    if report.status == "interrupted":
        return f"Interrupted{on}: {peak} so far; {end}."
    if code:
        return f"Failed{on}, but not for lack of GPU memory: {peak}; {end}."
    if report.max_peak is not None and (above := report.max_peak.above_bytes):
        size = format_bytes(report.max_peak.peak_bytes)
        return f"Above --max-peak{on}: {size} on the device, {format_bytes(above)} too much."
    usable = device.usable_bytes if device is not None else None
    of = f" of {format_bytes(usable)} for tensors" if usable else ""
    sizes = report.unknown_sizes
    if sizes is not None and sizes.is_share:
        on += f" with --values {sizes.assumed}"
    return f"{'Fits' if _is_sure(sizes) else 'May fit'}{on}: {peak}{of}."


def _peak(sizes: UnknownSizes | None, worst: RankMemory) -> str:
    """The reserved peak, or its range where it depends on values that are not known."""
    peak = format_bytes(worst.peak_reserved_bytes)
    if not _is_sure(sizes):
        return f"at least {peak}"
    if sizes is None or sizes.upper_bytes is None or sizes.lower_bytes == sizes.upper_bytes:
        return peak
    if sizes.lower_bytes is None:
        return f"up to {peak}"
    low, high = format_bytes(sizes.lower_bytes), format_bytes(sizes.upper_bytes)
    return f"{low} to {'more than ' if worst.outcome == 'oom' else ''}{high}"


def _is_sure(sizes: UnknownSizes | None) -> bool:
    return sizes is None or sizes.is_sure


def _device(device: RunDevice) -> str:
    size, count = format_bytes(device.total_bytes), device.gpus
    if device.gpu_name is None:
        name = f"a GPU with {size}" if count == 1 else f"{count} GPUs with {size} each"
    else:
        card = real_name(device.gpu_name)
        name = card if count == 1 else f"{count} x {card}"
    return f"{name} ({device.kind})" if device.kind == "emulated" else name


def _left(left_bytes: int, device: RunDevice) -> str:
    """What the fullest GPU has left, and whether a plan would call it too little."""
    text = f"{format_bytes(left_bytes)} on the fullest GPU"
    if left_bytes >= headroom_bytes(device.total_bytes, USUAL_HEADROOM):
        return text
    return f"{text}, less than the headroom of {format_percent(USUAL_HEADROOM)} that plan keeps"


def _stopped(ranks: tuple[RankMemory, ...]) -> str:
    steps = max(rank.steps for rank in ranks)
    if not steps:
        return "no optimizer step"
    reasons = {rank.stopped for rank in ranks}
    unit = "backward pass" if ranks[0].unit == "pass" else "step"
    if "steady" in reasons:
        return f"stopped after {unit} {steps}: memory repeats"
    if "past" in reasons:
        return f"stopped after {unit} {steps}: past the card's memory, and memory does not repeat"
    if "steps" in reasons:
        return f"stopped after {unit} {steps}, as asked"
    if unit == "step":
        return counted(steps, "optimizer step")
    return f"no optimizer step, {steps:,} backward pass{'' if steps == 1 else 'es'}"


def _ran_out(oom: RankOom, *, explained: bool) -> list[tuple[str, str]]:
    """Where memory ran out; the numbers too, unless a diagnosis below has them."""
    parts = [f"step {oom.step}", oom.phase if oom.phase != "unknown" else "", oom.module or ""]
    parts.append(place(oom.where) if oom.where is not None else "")
    facts = [("Ran out in", ", ".join(filter(None, parts)))]
    if oom.caught:
        facts.append(("", "the script caught the error and continued"))
    if oom.went_past:
        facts.append(("", "the script got no error and ran on past the card's memory"))
    if not explained:
        asked, free = format_bytes(oom.requested_bytes), format_bytes(oom.free_bytes)
        facts.append(("Request", f"{asked}, {free} was free"))
    if oom.went_past:
        return facts
    least = format_bytes(oom.least_bytes)
    return [*facts, ("Needs", f"more than {least} for tensors; how much more is unknown")]


def place(where: Place) -> str:
    """`train.py:12 in main`."""
    return f"{where.file}:{where.line} in {where.function}"


def _sizes(unknown: UnknownSizes | None) -> list[Section]:
    """The lines whose memory depends on values that are not known, and what was tried."""
    if unknown is None:
        return []
    lines = [
        f"{_at(size)} ({size.operator}, {counted(size.count, 'time')})" for size in unknown.sizes
    ]
    what = "Memory" if any(size.is_branch for size in unknown.sizes) else "Sizes"
    verb = "depends" if what == "Memory" else "depend"
    return _first_lines(f"{what} that {verb} on unknown values", lines, _tried(unknown))


def _first_lines(title: str, lines: Sequence[str], aside: str) -> list[Section]:
    notes = (Note(line, "normal") for line in lines[:_SHOWN_LINES])
    return [Section(title, (*notes, Note(aside)))]


def _at(size: UnknownSize) -> str:
    return f"{size.file}:{size.line}" if size.file else "the backward pass"


def _tried(unknown: UnknownSizes) -> str:
    branches = sum(size.is_branch for size in unknown.sizes)
    most = "the most that they can select"
    if branches:
        most = "these branches the other way"
        most += ", and the most that values select" if branches < len(unknown.sizes) else ""
    if unknown.failed is not None and unknown.assumed == "max":
        return f"This is with {most}. With zeros it failed: {unknown.failed}."
    if unknown.failed is not None and unknown.assumed == "0":
        return (
            f"These values are assumed to be zero. A run with {most} gave no answer: "
            f"{unknown.failed}. --values half, or a number, may work."
        )
    if unknown.upper_bytes is None:
        taken = _TAKEN.get(unknown.assumed, unknown.assumed)
        return f"These values are assumed to be {taken}. With others it may need more."
    if unknown.untried is not None:
        return f"{unknown.untried[0].upper()}{unknown.untried[1:]}. It may need more."
    open_ends = [_at(size) for size in unknown.sizes if size.bounded is False]
    if open_ends:
        lines = ", ".join(open_ends)
        return f"No shape limits {lines}; say with --values NUMBER what to expect."
    if unknown.lower_bytes == unknown.upper_bytes:
        return f"The peak is the same with zeros and with {most}."
    low, high = format_bytes(unknown.lower_bytes), format_bytes(unknown.upper_bytes)
    others = ""
    if branches > 1:
        others = " All of them went the other way in one run; other combinations were not tried."
    return (
        f"The peak is {low} to {high} reserved: from a run that takes them for zero to one with "
        f"{most}.{others} --values half, or a number, tells what is between."
    )


def _unknown(ranks: tuple[RankMemory, ...]) -> list[Section]:
    """The lines that read values which no kernel computed."""
    counts: Counter[str] = Counter()
    for rank in ranks:
        for branch in rank.unknown_branches:
            counts[f"{branch.file}:{branch.line}"] += branch.count
    if not counts:
        return []
    lines = [f"{place} ({counted(count, 'time')})" for place, count in counts.most_common()]
    about = "If one of these lines decides how much memory is used, the answer may differ."
    return _first_lines("Lines that read unknown values", lines, about)


def curve_lines(rank: RankMemory, *, signs: bool) -> Verbatim | None:
    """Allocated memory from the first allocation to the last; None without any.

    A column is the highest point of its stretch. Its full height is the peak.
    """
    points = rank.memory
    if len(points) < 2:
        return None
    width = min(_WIDTH, len(points))
    columns = [
        points[i * len(points) // width : (i + 1) * len(points) // width] for i in range(width)
    ]
    heights = [max(point.allocated_bytes for point in part) for part in columns]
    marks, seen = "", 0
    for part in columns:
        step = part[-1].step
        marks += str(step % 10) if step > seen else " "
        seen = max(seen, step)
    below = [marks.rstrip() + "  ends of steps"] if marks.strip() else []
    line = f"{curve(heights, signs=signs)}  peak {format_bytes(max(heights))} allocated"
    return Verbatim((line, *below))


def rank_grid(ranks: tuple[RankMemory, ...], *, together: bool) -> Grid:
    """A row a rank, at its peak; with `together`, ranks with equal rows share one."""
    several = len({rank.device for rank in ranks}) > 1 and len({rank.rank for rank in ranks}) == 1
    names = [f"GPU {r.device}" if several else str(r.rank) for r in ranks]
    table = blocks.table_of(ranks, _CELLS)
    columns = (Column("rank"), *table.columns)
    rows = [(name, *cells) for name, cells in zip(names, table.rows, strict=True)]
    if not together:
        return Grid(columns, tuple(rows))
    shared = []
    for cells, group in groupby(rows, lambda row: row[1:]):
        (first, *_), *others = group
        shared.append((f"{first}-{others[-1][0]}" if others else first, *cells))
    return Grid(columns, tuple(shared))


def rank_rows(report: Report) -> Iterator[list[Any]]:
    """The headings, then a row a rank; the smallest card that would do is that of the command."""
    smallest = None if report.smallest_gpu is None else report.smallest_gpu.name
    columns = named(scalars(RankMemory))
    columns += [(f"where.{name}", f"where.{name}") for name in scalars(Place)]
    columns += [(f"oom.{name}", f"oom.{name}") for name in scalars(RankOom)]
    return record_rows([*columns, ("smallest_gpu", lambda _: smallest)], report.ranks)


def step_grid(rank: RankMemory) -> Grid:
    """The peaks of each step of a rank, and what it left."""
    sizes = {
        "peak allocated": "peak_allocated_bytes",
        "peak reserved": "peak_reserved_bytes",
        "allocated after": "allocated_bytes",
        "reserved after": "reserved_bytes",
    }
    columns = tuple(map(blocks.figures, ("step", *sizes)))
    sized = attrgetter(*sizes.values())
    rows = ((str(step.step), *map(format_bytes, sized(step))) for step in rank.steps_memory)
    return Grid(columns, tuple(rows))
