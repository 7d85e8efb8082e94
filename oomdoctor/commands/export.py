"""A rung of a stored run, ready to be written for another program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from oomdoctor import __version__
from oomdoctor.analysis.ranking import in_order
from oomdoctor.commands.user_training import quant_method_of, read_user_training
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.facts.choices import AUTO, FormatName
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import YOURS, UserTraining
from oomdoctor.stacks.carried_settings import beside_of, not_carried
from oomdoctor.stacks.export import export
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.reading.finish import Overrides
from oomdoctor.stacks.reading.merge import recognized
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.scripts.data import data_of
from oomdoctor.stacks.writing.changed_lines import main_file
from oomdoctor.system.training_files import read_documents
from oomdoctor.units import format_bytes

# Libraries that a training script uses, in the order in which they are named.
_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "trl", "deepspeed")
_WORDS = {"measured": "measured", "emulated": "measured", "predicted": "predicted"}


def result_at(report: Report, place: str, run: str) -> ProbeResult:
    """The rung at a place: its number in the table, its label, or its key or how that begins.

    Raises:
        OomDoctorError: there is no such rung in this run (exit 2).
    """
    results = in_order(report)
    if place.isdecimal() and 1 <= int(place) <= len(results):
        return results[int(place) - 1]
    named = [result for result in results if place in (result.label, result.key)]
    named = named or [
        result for result in results if len(place) >= 4 and result.key.startswith(place)
    ]
    if len(named) == 1:
        return named[0]
    if not results:
        raise usage_error(
            "no_rungs",
            f"the run {run} has no configurations",
            'make one: oomdoctor plan MODEL --gpu "RTX 4090"',
        )
    problem = "is the label of several configurations" if named else "is not a configuration"
    raise usage_error(
        "unknown_rung", f"{place} {problem} of the run {run}", f"choose one:\n{listed(results)}"
    )


def listed(results: Sequence[ProbeResult]) -> str:
    """The rungs with their places, one a line."""
    width = len(str(len(results)))
    return "\n".join(f"{n:>{width}}  {result.label}" for n, result in enumerate(results, 1))


def stack_rung(report: Report, result: ProbeResult, run: str) -> StackRung:
    """The rung of a result, with where it is from."""
    size = result.micro_batch_size or result.config.micro_batch_size
    config = result.config.with_micro_batch(1 if size == AUTO else size)
    assert report.model is not None and report.request is not None and report.machine is not None
    local = report.model.source == "local"
    return StackRung(
        config=config,
        label=result.label,
        model=report.request.model.name if local else report.model.id,
        task=report.model.task,
        revision=None if local else report.request.model.revision,
        trust_remote_code=report.request.model.trust_remote_code,
        origin=_origin(report, result, run),
        versions=report.machine.versions,
        device=report.machine.device,
        quant_method=report.model.quant_method,
    )


def rung_of_files(texts: Sequence[str], target: str) -> tuple[StackRung, tuple[str, ...]]:
    """The rung of the user's own files, and notes on what the target does not get of them.

    Raises:
        OomDoctorError: a file cannot be used, or none names the model (exit 2).
    """
    training = read_user_training(texts, None, Overrides(), None)
    files = ", ".join(file.path for file in training.files)
    if training.model is None:
        raise usage_error(
            "no_model", f"--from: {files}: no file names the model", "name it in the file"
        )
    beside = _beside(texts, training.config.objective)
    rung = StackRung(
        config=training.config,
        label=label_of(training.config),
        model=training.model,
        task="causal-lm",
        revision=training.revision,
        origin=(f"Converted from {files} by oomdoctor {__version__}.",),
        beside={key: value for key, (_, value) in beside.items()},
        quant_method=quant_method_of(training),
    )
    lost = not_carried(rung, cast(FormatName, target))
    return rung, _left(training, {name: key in lost for key, (name, _) in beside.items()})


def _beside(texts: Sequence[str], objective: str) -> dict[str, tuple[str, Any]]:
    """The settings of the files that no rung has and other programs have too."""
    beside: dict[str, tuple[str, Any]] = {}
    for document in map(recognized, read_documents(texts)):
        if document.asked is not None:
            beside = beside_of(document.values, document.asked, objective) | beside
    return beside


def _left(training: UserTraining, elsewhere: Mapping[str, bool]) -> tuple[str, ...]:
    """Notes on settings of the files: those not in the rung, then those without effect on it.

    `elsewhere` are the names of settings that other programs have; True if the target does not.
    """
    left = [setting for setting in training.not_taken if setting.name not in elsewhere]
    notes = [f"not taken: {setting.name}: {setting.reason}" for setting in left if setting.matters]
    others = [setting.name for setting in left if not setting.matters]
    others += [name for name, lost in elsewhere.items() if lost]
    if others:
        names = ", ".join(dict.fromkeys(others))
        notes.append(f"not carried over, no effect on memory or speed: {names}")
    return tuple(notes)


def export_line(report: Report, run: str | None) -> str | None:
    """The command that writes the best rung that fits; None if there is none to write.

    With --from it is written for the user's own program, unless their own rung is the best.
    """
    results = in_order(report)
    if not results or not results[0].surely_fits or run is None or report.model is None:
        return None
    training = report.request.user_training if report.request is not None else None
    program: str = "trl" if training is None else main_file(training).format
    if training is not None and results[0].label == YOURS:
        return None
    try:
        export(stack_rung(report, results[0], run), program)
    except OomDoctorError:
        return None
    file = BY_NAME[program].file
    file = file if training is None else f"changed-{file}"  # theirs may have the usual name
    return f"oomdoctor export 1 --to {program} --run {shlex.quote(run)} > {file}"


def warning(result: ProbeResult) -> str | None:
    """What to know before it is used; None for a rung that surely fits."""
    if result.surely_fits:
        return None
    if result.borderline:
        return f"{result.label} is borderline in this run: it may run out of memory"
    return f"{result.label} did not fit in this run: {result.reason or result.outcome}"


def _origin(report: Report, result: ProbeResult, run: str) -> tuple[str, ...]:
    assert report.machine is not None
    peak = result.deciding_peak_bytes()
    cards = [card.name for card in report.cards]
    device = (
        cards[0] if cards else report.machine.gpu_name or f"the {report.machine.device.upper()}"
    )
    rows = data_of(result.config).rows
    each = f"2 x {result.sequence_length:,}" if rows == "pairs" else f"{result.sequence_length:,}"
    size = (
        f"{result.micro_batch_size} x {each} tokens a forward pass, "
        f"{result.effective_batch_size} {rows} an optimizer step"
    )
    lines = [f"{size}."]
    if peak is not None:
        word = _WORDS[result.evidence]
        whose = " of each GPU" if result.config.world_size > 1 else ""
        lines.append(f"Peak{whose}: {format_bytes(peak)}, {word} on {device}.")
    installed = [f"{name} {version}" for name in _LIBRARIES
             if (version := report.machine.versions.get(name))]  # fmt: skip
    with_ = f", with {', '.join(installed)}" if installed else ""
    lines.append(f"From the run {run} of oomdoctor {report.tool.version}{with_}.")
    return tuple(lines)
