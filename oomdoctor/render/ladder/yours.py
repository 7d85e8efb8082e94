"""The rung of --from: how it does, what would help, and what of the files it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import TrainConfig, sequences_per_sample
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import (
    YOURS,
    ChangedLine,
    NotTaken,
    UserTraining,
    YourChange,
    by_reason,
)
from oomdoctor.render.blocks import Block, Facts, Look, Note, Section, Verbatim
from oomdoctor.render.ladder.columns import DID_NOT_FIT, NOT_RUN, Row, fit_notes, table, without
from oomdoctor.render.ladder.header import is_plan, own_result, too_large
from oomdoctor.render.text import escape
from oomdoctor.render.words import counted, estimate
from oomdoctor.stacks.writing.patch import by_file, code_place
from oomdoctor.units import format_bytes

_MOST_LISTED = 12
_COLUMNS = without("vs fastest")


def your_sections(report: Report, look: Look) -> list[Section]:
    """The section above all tables; none without --from."""
    training = report.request.user_training if report.request is not None else None
    if training is None:
        return []
    blocks: list[Block] = []
    row = own_result(report)
    if row is not None:
        blocks.append(_row(report, row, look.plus_minus))
    facts = _read_as(training, verbose=look.verbose)
    facts += [*_answer(report), *_taken(report, training, verbose=look.verbose)]
    blocks.append(Facts(tuple(facts)))
    blocks += _code(report, verbose=look.verbose)
    names = ", ".join(PurePath(file.path).name for file in training.files)
    return [Section(f"Yours: {names}", tuple(blocks))]


def _row(report: Report, result: ProbeResult, plus_minus: str) -> Block:
    usable = report.usable_bytes
    planned = is_plan(report)
    if result.outcome == "fits" or result.borderline:
        place = list(report.ranking).index(result.key) + 1 if result.key in report.ranking else None
        notes = tuple(fit_notes(result, planned=planned))
        row = Row(result, plus_minus, place=place, usable_bytes=usable, notes=notes,
                  tokens="1M", planned=planned)  # fmt: skip
        return table(_COLUMNS, [row])[0]
    columns = DID_NOT_FIT if result.outcome in too_large(report) else NOT_RUN
    return table(columns, [Row(result, plus_minus, usable_bytes=usable, planned=planned)])[0]


def _read_as(training: UserTraining, *, verbose: bool) -> list[tuple[str, str]]:
    """The rung in short, so that a wrong reading is seen; if `verbose`, by which settings."""
    config = training.config
    pairs = [("Read as", f"{label_of(config)}, sequence length {config.sequence_length:,}")]
    if verbose:
        for file in training.files:
            said = [
                f"{setting.name} {setting.value}"
                + (f" (line {setting.line})" if setting.line is not None else "")
                for setting in training.said
                if setting.file == file.path
            ]
            if said:
                pairs.append(("", f"from {PurePath(file.path).name}: {', '.join(said)}"))
    return pairs


def _answer(report: Report) -> list[tuple[str, str]]:
    """What would make it fit, or faster, with the lines to change."""
    yours, result = report.yours, own_result(report)
    if yours is None or result is None:
        return []
    if yours.aim is None or not yours.changes:
        if yours.reason is None:
            return []
        nothing = ("Fits with", f"nothing that is known here: {yours.reason}")
        return [nothing if yours.aim == "fits" else ("Changes", yours.reason)]
    pairs = []
    for number, change in enumerate(yours.changes):
        name = {"fits": "Fits with", "faster": "Faster with"}[yours.aim] if number == 0 else "or"
        pairs.append((name, f"{change.change}: {_effect(change, result)}"))
        lines = _lines(change.lines)
        if change.code:
            lines = "; ".join(filter(None, [lines, "the code below" if number == 0 else "code"]))
        if lines:
            pairs.append(("", lines))
    return pairs


def _code(report: Report, *, verbose: bool) -> list[Block]:
    """The code of the best change, or of all if `verbose`, each piece with its place."""
    blocks: list[Block] = []
    changes = report.yours.changes if report.yours is not None else ()
    for change in changes if verbose else changes[:1]:
        for code in change.code:
            place = f"{change.change}: in {PurePath(code.file).name}, {code_place(code)}:"
            lines = (*code.imports, *([""] if code.imports else []), *code.code.splitlines())
            blocks += [Note(place, "normal"), Verbatim(tuple(map(escape, lines)))]
    return blocks


def _effect(change: YourChange, result: ProbeResult) -> str:
    parts = [f"peak {format_bytes(change.peak_device_bytes)}"]
    if change.tokens_per_s is not None:
        rate = estimate(change.tokens_per_s, result)
        parts.append(f"{rate} tokens/s")
    if change.speedup is not None:
        parts[-1] += f" ({change.speedup:.2f}x)"
    return ", ".join(parts)


def _lines(lines: Sequence[ChangedLine]) -> str:
    """`in train.yaml: gradient_checkpointing: true (line 8)`, one file after the other."""
    files = by_file(lines).items()
    return "; ".join(f"in {file}: {', '.join(texts)}" for file, texts in files)


def _taken(report: Report, training: UserTraining, *, verbose: bool) -> list[tuple[str, str]]:
    """What the rung leaves out, and what it takes from defaults."""
    pairs: list[tuple[str, str]] = []
    matter = [setting for setting in training.not_taken if setting.matters]
    others = [setting for setting in training.not_taken if not setting.matters]
    for number, setting in enumerate(matter if verbose else matter[:_MOST_LISTED]):
        pairs.append(("Not taken" if number == 0 else "", _left_out(setting, training)))
    if len(matter) > _MOST_LISTED and not verbose:
        pairs.append(("", f"{len(matter) - _MOST_LISTED} more; --verbose lists them"))
    if others:
        do = "does" if len(others) == 1 else "do"
        what = f"{counted(len(others), 'setting')} that {do} not change memory or speed"
        names = f": {', '.join(setting.name for setting in others)}" if verbose else ""
        pairs.append(("Not taken" if not matter else "", what + names))
    if training.assumed:
        texts = by_reason(training.assumed, training.config, all_of=verbose)
        pairs += [("Assumed" if number == 0 else "", text) for number, text in enumerate(texts)]
    for text in _padding(report, training.config):
        named = any(name == "Assumed" for name, _ in pairs)
        pairs.append(("" if named else "Assumed", text))
    return pairs


def _padding(report: Report, config: TrainConfig) -> tuple[str, ...]:
    """What rows of different length need more than full ones, and how to ask for a rung of them.

    sdpa turns the mask of all pairs of tokens into numbers of the type of the queries, in each
    layer, and keeps them for the backward pass (torch `transformers/attention.cpp`,
    `convert_boolean_attn_mask`). With checkpointing the mask itself is kept, and one layer's
    numbers at a time. Eight layers on the emulated card took 8 times rows x length**2 x 2 bytes
    more, less 8 KiB; with checkpointing 3 bytes for each pair, less 1 KiB.
    """
    rows = config.micro_batch_size
    if report.model is None or report.model.task != "causal-lm":
        return ()
    if config.attention != "sdpa" or not isinstance(rows, int):
        return ()
    if config.packing != "none" or config.padding != "none":
        return ()
    if rows == 1 and config.objective == "default":
        return ()  # it is as long as itself
    at_a_time = config.activation_checkpointing == "full"
    each = dtype_bytes(compute_dtype(config)) + (1 if at_a_time else 0)
    size = rows * sequences_per_sample(config) * config.sequence_length**2 * each
    held = "in all" if at_a_time else "in each layer"
    needs = f"rows without padding; for padded ones sdpa needs masks of {format_bytes(size)} {held}"
    padded = replace(config, padding="longest")
    if config_faults(padded):
        return (needs,)
    return needs, f"add --rung {YOURS},padding=longest for a configuration with them"


def _left_out(setting: NotTaken, training: UserTraining) -> str:
    file = f" in {PurePath(setting.file).name}" if len(training.files) > 1 else ""
    line = f" (line {setting.line})" if setting.line is not None else ""
    return f"{setting.name}: {setting.value}{file}{line}: {setting.reason}"
