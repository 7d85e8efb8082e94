"""A rung taken apart: the highest moment of each phase, the largest tensors, and the formulas."""

from __future__ import annotations

from oomdoctor.records.plan import FormulaView, Why
from oomdoctor.records.simulation import PhasePeak
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section
from oomdoctor.units import DASH, format_bytes, format_count, format_percent

_CATEGORIES = (
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer states"),
    ("activations", "activations"),
    ("logits", "logits"),
    ("inputs", "inputs"),
    ("temporary", "temporary"),
)
_OUTSIDE = {"inputs": "the batch", "logits": "the loss"}  # what none of the modules made
_STEPS = {"load": "", "first": "first step", "steady": "later steps"}


def why_sections(why: Why, *, verbose: bool) -> list[Section]:
    """What the peak of a rung is made of; `verbose` tells the largest tensors of every phase."""
    peak = max(why.phases, key=lambda phase: phase.peak_allocated_bytes)
    title = f"Why {why.label} needs {format_bytes(why.peak_device_bytes)}"
    sections = [
        Section(title, (Facts(tuple(_sum(why))),)),
        Section("The highest moment of each phase", (_phases(why.phases, peak),)),
        Section(f"The largest tensors at the peak, in {_moment(peak)}", (_largest(peak),)),
        Section("By formula: bytes a parameter", tuple(_formula(why.formula, why))),
    ]
    if verbose:
        sections += [
            Section(f"The largest tensors in {_moment(phase)}", (_largest(phase),))
            for phase in why.phases
            if phase is not peak and phase.largest
        ]
    return sections


def _moment(phase: PhasePeak) -> str:
    step = _STEPS.get(phase.step, phase.step)
    return f"{phase.phase} of the {step}" if step else phase.phase


def _sum(why: Why) -> list[tuple[str, str]]:
    pairs = [
        (
            "allocated",
            f"{format_bytes(why.peak_allocated_bytes)} at micro-batch size "
            f"{why.micro_batch_size}: tensors, and what the allocator rounds them up to",
        )
    ]
    if why.peak_reserved_bytes is not None:
        held = why.peak_reserved_bytes - why.peak_allocated_bytes
        pairs.append(("reserved", f"{format_bytes(held)} more that the allocator holds free"))
    pairs.append(("context", f"about {format_bytes(why.context_bytes)} for CUDA and libraries"))
    return pairs


def _phases(phases: tuple[PhasePeak, ...], peak: PhasePeak) -> Grid:
    rows = tuple(
        (
            _moment(phase),
            format_bytes(phase.peak_allocated_bytes),
            *(_size(phase.by_category.get(name)) for name, _ in _CATEGORIES),
            "the peak" if phase is peak else "",
        )
        for phase in phases
    )
    columns = (
        Column("phase"),
        Column("peak", right=True),
        *(
            Column(word, place, right=True, detail=f"{word} {{}}")
            for place, (_, word) in enumerate(_CATEGORIES, 1)
        ),
        Column(" "),
    )
    return Grid(columns, rows)


def _largest(phase: PhasePeak) -> Grid:
    rows = tuple(
        (
            format_bytes(entry.size_bytes * entry.count),
            f"{entry.count:,} x {format_bytes(entry.size_bytes)}",
            entry.category,
            entry.operator.removeprefix("aten::") or DASH,
            entry.module or _OUTSIDE.get(entry.category, DASH),
        )
        for entry in phase.largest
    )
    columns = (
        Column("together", right=True),
        Column("tensors", 1, right=True, detail="{}"),
        Column("category"),
        Column("operator", 2, detail="by {}"),
        Column("module", 3, detail="in {}"),
    )
    return Grid(columns, rows)


def _formula(view: FormulaView, why: Why) -> list[Block]:
    rows = [
        (
            term.name,
            DASH if term.bytes_per_parameter is None else f"{term.bytes_per_parameter:.3g}",
            format_count(term.parameters),
            format_bytes(term.formula_bytes),
            _size(term.simulated_bytes),
        )
        for term in view.terms
        if term.formula_bytes or term.simulated_bytes
    ]
    rows.append(
        (
            "together",
            "",
            "",
            format_bytes(view.formula_bytes),
            format_bytes(why.peak_allocated_bytes),
        )
    )
    columns = (
        Column("term"),
        Column("bytes a parameter", 2, right=True, detail="{} bytes a parameter"),
        Column("parameters", 2, right=True, detail="{} parameters"),
        Column("by formula", right=True),
        Column("at the peak", right=True),
    )
    word = "above" if view.rule_error > 0 else "below"
    rule = (
        f"the rule of thumb of 16 bytes a parameter gives {format_bytes(view.rule_bytes)}: "
        f"{format_percent(abs(view.rule_error))} {word} the {format_bytes(why.peak_device_bytes)} "
        "predicted"
    )
    return [Grid(columns, tuple(rows)), *(Note(text, "normal") for text in (rule, *view.remarks))]


def _size(size: int | None) -> str:
    return format_bytes(size) if size else DASH
