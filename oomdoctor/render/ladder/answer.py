"""The answer in a few sentences: what is best, and what each method needs that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.analysis.ranking import ranked_by
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.plan import PlanRemedy, SweepLine
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.searched import FewestLine, SolveLine
from oomdoctor.records.report.user_training import YOURS
from oomdoctor.render.ladder.columns import missed_by
from oomdoctor.render.ladder.header import headline, is_plan, own_result, too_large
from oomdoctor.render.words import (
    METHODS,
    SWEPT_WORDS,
    about_speed,
    batch,
    card_name,
    card_size,
    counted,
)
from oomdoctor.units import format_bytes, format_share

APART = {"not_settled": "Fits, speed not settled", "not_believable": "Fits, speed not believable"}
"""The states of speeds that are not ranked, and the titles of their tables."""
_TITLES = {"full": "Full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}
_FIRST = {"throughput": "Best", "memory": "Least memory", "micro-batch": "Largest micro-batch"}


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """What a report says about a method, by its best rung; `fits` is None if it is not known."""

    name: str
    text: str
    fits: bool | None


def answer_lines(report: Report, plus_minus: str) -> list[str]:
    """The answer, the methods of which no rung fits, and how many rungs fit.

    A report that is not whole says first how it ended.
    """
    own = _own(report)
    said = [own or _across(report) or _best(report, plus_minus)]
    said += [
        f"{method.name}: {method.text}"
        for method in method_answers(report, plus_minus)
        if method.fits is False and not own and (report.ranking or remedies_of(report))
    ]
    whole = report.status not in ("interrupted", "running", "error")
    lines = [*said, headline(report)] if whole else [headline(report), *said]
    return list(filter(None, lines))


def method_answers(report: Report, plus_minus: str) -> list[MethodAnswer]:
    """The methods of the ladder, each with the rung that is best or what would make one fit."""
    own = report.yours.key if report.yours is not None else None  # has a section of its own
    answers = []
    for method, name in _TITLES.items():
        rungs = [r for r in report.results if r.config.method == method and r.key != own]
        best = next((r for r in report.results if r.key == getattr(report.picks, method)), None)
        if best is not None:
            text = ", ".join(filter(None, [best.label, about_speed(best, plus_minus)]))
            answers.append(MethodAnswer(name, text, True))
        elif rungs:
            answers.append(MethodAnswer(name, *_without_best(report, method, rungs)))
    return answers


def _without_best(
    report: Report, method: str, rungs: Sequence[ProbeResult]
) -> tuple[str, bool | None]:
    fitting = [r.label for r in rungs if r.outcome == "fits"]
    if any(r.outcome == "fits" and r.speed_state in APART for r in rungs):
        verb = "fits" if len(fitting) == 1 else "fit"
        return f"not ranked by speed; {', '.join(fitting)} {verb}", True
    remedies = remedies_of(report).get(method, [])
    near = ", ".join(r.label for r in rungs if r.borderline)
    if near:
        helps = [remedy for remedy in remedies if remedy.change and not remedy.reason]
        changed = [f"{remedy.label} {_change_text(remedy)}" for remedy in helps]
        return "; ".join([f"none fits for certain; borderline: {near}", *changed]), False
    if remedies:
        return _remedy_text(remedies), False
    if any(r.failure is None or r.failure.code != "not_reached" for r in rungs):
        return _no_rung_fits(report, rungs), False
    return "not tried yet" if report.status == "running" else "not reached", None


def _no_rung_fits(report: Report, rungs: Sequence[ProbeResult], none: str = "none") -> str:
    """`none fits; full-bf16+ckpt comes nearest: short by 5.50 GiB, needs 19.8 GiB`.

    Where a rung could not be tried, the answer does not say that none fits.
    """
    missed = [rung for rung in rungs if rung.missed_by_bytes is not None]
    if not missed:
        return f"{none} could be {'simulated' if is_plan(report) else 'measured'}"
    nearest = min(missed, key=lambda rung: rung.missed_by_bytes or 0)
    short = missed_by(nearest, report.usable_bytes)
    if not rungs[1:]:
        return f"{nearest.label} does not fit: {short}"
    tried = "" if len(missed) == len(rungs) else " that could be tried"
    return f"{none}{tried} fits; {nearest.label} comes nearest: {short}"


def _best(report: Report, plus_minus: str) -> str:
    """The first of the ranking, or else what is borderline or comes nearest; empty if unknown."""
    first = next((r for r in report.results if r.key in report.ranking[:1]), None)
    if first is not None:
        asked = report.request.rank_by if report.request is not None else "throughput"
        word = _FIRST[ranked_by(report.results, asked)] if report.ranking[1:] else "Fits"
        sizes = f"{word}: {first.label}, {batch(first)}{_share(first, report)}"
        return ", ".join(filter(None, [sizes, about_speed(first, plus_minus)]))
    fitting = [result for result in report.results if result.surely_fits]
    if fitting:
        return f"Fits: {'; '.join(f'{result.label}{_share(result, report)}' for result in fitting)}"
    near = [result for result in report.results if result.borderline]
    if near:
        least = min(near, key=lambda result: result.deciding_peak_bytes() or 0)
        return f"Nothing fits for certain; {least.label} is borderline{_share(least, report)}"
    by_method = remedies_of(report)
    helps = [remedy for method in _TITLES for remedy in by_method.get(method, ())[:1]]
    sure = [r for r in helps if r.change and not r.reason and r.basis == "simulated"]
    if sure:
        return f"Nothing fits unchanged; {sure[0].label} fits with {sure[0].change}"
    if not any(result.missed_by_bytes is not None for result in report.results):
        return ""
    return _no_rung_fits(report, report.results, "Nothing")


def _share(result: ProbeResult, report: Report) -> str:
    """`: 20.6 of 23.0 GiB`; empty where no peak is known."""
    peak, usable = result.deciding_peak_bytes(), report.usable_bytes
    if peak is None:
        return ""
    return f": {format_share(peak, usable)}"


def _own(report: Report) -> str:
    """What became of the rung of --from, and with which change it fits; empty without one."""
    own, yours = own_result(report), report.yours
    if own is None or yours is None:
        return ""
    if own.outcome == "fits" or own.borderline:
        return f"Yours {'is borderline' if own.borderline else 'fits'}{_share(own, report)}"
    if own.outcome not in too_large(report) and own.missed_by_bytes is None:
        return f"Yours was not {'simulated' if is_plan(report) else 'measured'}"
    missed = missed_by(own, report.usable_bytes)
    text = "Yours does not fit" + (f": {missed}" if missed else "")
    if yours.aim == "fits" and yours.changes:
        text += f"; fits with {yours.changes[0].change}"
    return text


def _across(report: Report) -> str:
    """The answer of a plan for several cards, of a sweep, of --solve or of --min.

    With --from it is about the user's own rung. Empty for other reports.
    """
    answer = report.sweep or report.fewest or report.solve
    if answer is None:
        return "" if report.results else _smallest_card(report)
    yours = report.request is not None and report.request.user_training is not None
    own = [line for line in answer.lines if yours and line.label == YOURS]
    return _own_reach(report, own) if own else _best_reach(report, answer.lines)


def _own_reach(report: Report, own: Sequence[SweepLine | SolveLine | FewestLine]) -> str:
    """How far the user's own rung goes on the cards, or with how few GPUs."""
    reached = [value for line in own if (value := _reach(line)) is not None]
    where = "" if len(own) == 1 else f" on {len(reached)} of {counted(len(own), 'card')}"
    if report.fewest is not None:
        best = f"on {counted(min(reached, default=0), 'GPU')}{where}"
        none = f"on none of {report.fewest.low} to {report.fewest.high} GPUs"
    else:
        answer = report.sweep or report.solve
        word = SWEPT_WORDS[answer.key] if answer is not None else ""
        best = f"up to {word} {max(reached, default=0):,}{where}"
        values = f"none of {counted(len(report.sweep.values), 'value')} of " if report.sweep else ""
        none = f"at {values or 'no '}{word}"
    if not reached and all(line.reason for line in own):
        return "Yours was not simulated"
    return f"Yours fits {best if reached else none}"


def _best_reach(report: Report, lines: Sequence[SweepLine | SolveLine | FewestLine]) -> str:
    """The rung that goes furthest, or needs the fewest GPUs; empty if none fits."""
    reached = [(value, line) for line in lines if (value := _reach(line)) is not None]
    if not reached:
        return ""
    answer = report.sweep or report.solve
    if answer is None:
        value, line = min(reached, key=lambda pair: pair[0])
        return f"Fewest GPUs: {value} x {card_name(line.card)} with {line.label}"
    value, line = max(reached, key=lambda pair: pair[0])
    card = f" on {card_name(line.card)}" if len(report.cards) > 1 else ""
    return f"Largest {SWEPT_WORDS[answer.key]}: {value:,} with {line.label}{card}"


def _smallest_card(report: Report) -> str:
    """The smallest card on which a rung fits, or the user's own; empty if there is none."""
    own = any(card.yours is not None for card in report.cards)
    fit = [card for card in report.cards if (card.yours.fits if card.yours else card.fitting)]
    if not fit:
        return ""
    least = min(fit, key=lambda card: (card.memory_bytes, card.total_bytes, card.name))
    what = "Smallest card for yours" if own else "Smallest card"
    picks = (getattr(least.picks, name) for name in METHODS)
    chosen = least.yours or next((pick for pick in picks if pick and pick.fits), None)
    text = f"{what}: {card_name(least.name)} ({card_size(least.memory_bytes)})"
    if chosen is None or chosen.peak_device_bytes is None:
        return text
    text += "" if own else f" with {chosen.label}"
    return f"{text}, {format_share(chosen.peak_device_bytes, least.usable_bytes)}"


def _reach(line: SweepLine | SolveLine | FewestLine) -> int | None:
    """The largest value with which a rung fits, or the fewest GPUs."""
    if isinstance(line, SweepLine):
        return line.largest_fitting if line.crossed_at is None else line.crossed_at
    return line.largest if isinstance(line, SolveLine) else line.gpus


def remedies_of(report: Report) -> dict[str, list[PlanRemedy]]:
    """What would make a method fit of which no rung does; only in a plan for one card."""
    by_method: dict[str, list[PlanRemedy]] = {}
    for card in report.cards if len(report.cards) == 1 else ():
        for remedy in card.remedies:
            by_method.setdefault(remedy.method, []).append(remedy)
    return by_method


def _remedy_text(remedies: list[PlanRemedy]) -> str:
    """`none fits; lora-r16 fits with sequence length 1,664 (frees 3.50 GiB, peak 22.8 GiB)`."""
    first = remedies[0]
    if first.change is None:
        return f"none fits, and no change is enough; {first.label}: {first.reason}"
    return f"none fits; {first.label} {', or '.join(map(_change_text, remedies))}"


def _change_text(remedy: PlanRemedy) -> str:
    if remedy.basis == "bound":
        return f"may fit with {remedy.change} ({remedy.reason})"
    frees = format_bytes(remedy.frees_bytes)
    if remedy.basis == "arithmetic":
        return (
            f"may fit with {remedy.change} (frees up to {frees}; not installed here to simulate it)"
        )
    peak = format_bytes(remedy.peak_device_bytes)
    verb = "is borderline with" if remedy.reason else "fits with"
    return f"{verb} {remedy.change} (frees {frees}, peak {peak})"
