"""A report as a page: what is said, in which order, in which words; how it is drawn is elsewhere.

The ranked rungs come first, then what did not fit and by how much, what could not be measured and
why, the pick of each method, warnings and the next command.
"""

from __future__ import annotations

from oomdoctor.records.report import Report
from oomdoctor.records.result import ProbeResult
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section, Verbatim
from oomdoctor.render.report.details import detail_sections
from oomdoctor.render.report.header import header, headline, is_plan
from oomdoctor.render.report.plan import plan_sections
from oomdoctor.render.report.rows import length_sections
from oomdoctor.render.words import (
    OUTCOME_WORDS,
    batch,
    ranked_results,
    short_count,
    speed,
)
from oomdoctor.units import (
    DASH,
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)

_METHODS = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}
_MOE = (
    "mixture of experts: which experts work on a token depends on the values of the weights; with "
    "synthetic weights the load of the experts, and so the speed, can differ from a trained model's"
)


def report_sections(report: Report, *, verbose: bool, plus_minus: str = "±") -> list[Section]:
    """The report as sections; `verbose` adds everything that is known about each rung.

    `plus_minus` is the sign before a spread: "±", or "+-" where only ASCII is welcome.
    """
    fitting = ranked_results(report)
    missed = [r for r in report.results if r.outcome in ("oom", "host_oom")]
    unmeasured = [r for r in report.results if r.outcome not in ("fits", "oom", "host_oom")]
    sections = [Section("", (Note(headline(report), "strong"), *header(report)))]
    if report.errors:
        sections.append(Section("Errors", tuple(_errors(report))))
    if fitting:
        sections.append(Section("Fits", tuple(_fitting(report, fitting, plus_minus))))
    if missed:
        sections.append(Section("Did not fit", (_missed(missed),)))
    if unmeasured or _not_reached(report):
        title = "Not predicted" if is_plan(report) else "Not measured"
        sections.append(Section(title, tuple(_not_measured(report, unmeasured, verbose))))
    if fitting:
        picks = Facts(tuple(_picks(report, plus_minus)))
        sections.append(Section("Picks: not the same training", (picks,)))
    sections += plan_sections(report, verbose=verbose)
    sections += length_sections(report.lengths, cards=len(report.cards), verbose=verbose)
    warnings = _warnings(report)
    if warnings:
        sections.append(Section("Warnings", tuple(Note(text, "normal") for text in warnings)))
    if verbose:
        sections += detail_sections(report, plus_minus)
    if report.next_commands:
        sections.append(Section("Next:", (Verbatim(report.next_commands),)))
    return sections


def _errors(report: Report) -> list[Block]:
    pairs = []
    for fault in report.errors:
        pairs.append(("error:", fault.message))
        if fault.hint:
            pairs += [("hint:", line) for line in fault.hint.splitlines()]
    return [Facts(tuple(pairs))]


def _fitting(report: Report, results: list[ProbeResult], plus_minus: str) -> list[Block]:
    usable = report.budget.usable_bytes if report.budget is not None else None
    fastest = max((r.tokens_per_s for r in results if r.tokens_per_s is not None), default=None)
    tokens = short_count(report.request.tokens) if report.request is not None else "N"
    ranked = set(report.ranking)
    rows = []
    for number, result in enumerate(results, 1):
        peak = result.deciding_peak_bytes()
        share = peak / usable if peak is not None and usable else None
        relative = (
            result.tokens_per_s / fastest if result.tokens_per_s is not None and fastest else None
        )
        rows.append(
            (
                str(number) if result.key in ranked else DASH,
                result.label,
                batch(result),
                format_bytes(peak),
                "fits" if share is None else f"fits, {format_percent(share)}",
                result.peak_phase or DASH,
                speed(result, plus_minus),
                DASH if relative is None else f"{format_rate(relative)}x",
                format_seconds(result.tokens_time_s),
                "; ".join(_notes(result, planned=is_plan(report))),
            )
        )
    grid = Grid(
        (
            Column("#", right=True),
            Column("rung"),
            Column("mb x acc", 3, right=True),
            Column("peak", 1, right=True, detail="peak {}"),
            Column("of usable", 2, detail="{} of usable", tone=True),
            Column("peak in", 6, detail="peak in {}"),
            Column("tokens/s", 1, right=True, detail="{} tokens/s"),
            Column("vs fastest", 5, right=True, detail="{} vs fastest"),
            Column(f"{tokens} tokens", 4, right=True, detail=f"{tokens} tokens in {{}}"),
            Column("notes", 7, wraps=True),
        ),
        tuple(rows),
    )
    spread = "uncertainty of the estimate" if is_plan(report) else "spread of the timed steps"
    legend = (
        "mb x acc: micro-batch x accumulation steps. of usable: peak / usable budget. "
        f"{plus_minus}: {spread}. vs fastest: speed relative to the fastest rung."
    )
    return [grid, Note(legend)]


def _notes(result: ProbeResult, *, planned: bool) -> list[str]:
    mixed = result.evidence == "predicted" and not planned
    notes = ["predicted, not measured"] if mixed else []
    if result.max_micro_batch_size not in (None, result.micro_batch_size):
        notes.append(f"max mb {result.max_micro_batch_size}")
    if result.mfu is not None and not planned:
        notes.append(f"MFU {format_percent(result.mfu)}")
    if result.attention_kernel is not None:
        notes.append(f"attention {result.attention_kernel}")
    measured = result.measurement
    if measured is not None:
        if measured.managed_bytes:
            notes.append(f"paged states {format_bytes(measured.managed_bytes)} managed")
        if measured.allocation_retries:
            notes.append(f"{measured.allocation_retries} allocation retries")
        if measured.skipped_optimizer_steps:
            notes.append(f"{measured.skipped_optimizer_steps} steps skipped by the scaler")
        if measured.peak_device_bytes is None and result.peak_rss_bytes is not None:
            notes.append(f"RSS {format_bytes(result.peak_rss_bytes)}")
    return [*notes, *result.notes]


def _missed(results: list[ProbeResult]) -> Grid:
    rows = []
    for result in results:
        oom = result.oom
        rows.append(
            (
                result.label,
                OUTCOME_WORDS[result.outcome],
                batch(result),
                format_bytes(result.missed_by_bytes),
                (oom.phase if oom is not None else result.peak_phase) or DASH,
                format_bytes(oom.requested_bytes if oom is not None else None),
                "; ".join([*filter(None, [result.reason]), *result.notes]),
            )
        )
    columns = (
        Column("rung"),
        Column("outcome", 1, tone=True),
        Column("mb x acc", 4, right=True, detail="at {}"),
        Column("lacks at least", 1, right=True, detail="lacks at least {}"),
        Column("phase", 2, detail="in {}"),
        Column("requested", 3, right=True, detail="requested {}"),
        Column("why", 5, wraps=True),
    )
    return Grid(columns, tuple(rows))


def _not_measured(report: Report, results: list[ProbeResult], verbose: bool) -> list[Block]:
    blocks: list[Block] = []
    if results:
        rows = tuple((r.label, OUTCOME_WORDS[r.outcome], _why(r)) for r in results)
        columns = (Column("rung"), Column("outcome", 1, tone=True), Column("why", 2, wraps=True))
        blocks.append(Grid(columns, rows))
    if _not_reached(report):
        blocks.append(Note("not reached: " + ", ".join(_not_reached(report)), "normal"))
    if not verbose and any(r.failure is not None and r.failure.log_tail for r in results):
        blocks.append(Note("--verbose shows the end of each log"))
    return blocks


def _why(result: ProbeResult) -> str:
    parts = [result.reason] if result.reason else []
    failure = result.failure
    if failure is not None:
        if failure.message not in (result.reason or ""):
            parts.append(failure.message)
        told = " ".join(parts)
        for word, value in (
            ("phase", failure.last_phase),
            ("signal", failure.signal),
            ("exit code", str(failure.exit_code) if failure.exit_code else None),
        ):
            if value and value not in told:
                parts.append(f"{word} {value}")
    if result.missed_by_bytes is not None:
        parts.append(f"missed by at least {format_bytes(result.missed_by_bytes)}")
    return "; ".join(parts)


def _not_reached(report: Report) -> list[str]:
    if report.request is None or report.status == "error" or (report.cards and not report.results):
        return []
    known = {result.label for result in report.results}
    return [rung.label for rung in report.request.recipe.rungs if rung.label not in known]


def _picks(report: Report, plus_minus: str) -> list[tuple[str, str]]:
    by_key = {result.key: result for result in report.results}
    pairs = []
    for method, name in _METHODS.items():
        result = by_key.get(getattr(report.picks, method) or "")
        rungs = [r for r in report.results if r.config.method == method]
        reached = [r for r in rungs if r.failure is None or r.failure.code != "not_reached"]
        if result is not None:
            text = (
                f"{result.label}, {batch(result)}, {format_bytes(result.deciding_peak_bytes())}, "
                f"{speed(result, plus_minus)} tokens/s"
            )
        else:
            text = "none fits" if reached else "none reached" if rungs else "not in this ladder"
        pairs.append((f"{name}:", text))
    return pairs


def _warnings(report: Report) -> list[str]:
    texts = [warning.message for warning in report.warnings]
    told = {warning.code for warning in report.warnings}
    machine, model = report.machine, report.model
    if machine is not None and machine.other_processes and "other_processes" not in told:
        held = "; ".join(
            f"{p.name or 'a process'} (pid {p.pid}) "
            + (f"{format_bytes(p.used_bytes)}" if p.used_bytes is not None else "of unknown size")
            for p in machine.other_processes
        )
        texts.append(f"other processes hold memory of this GPU: {held}")
    synthetic_moe = model is not None and model.mixture_of_experts and model.weights == "synthetic"
    if synthetic_moe and "moe_routing" not in told:
        texts.append(_MOE)
    return texts
