"""How a survey ends: its exit code and status, and the lines to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields

from oomdoctor.errors import ExitCode
from oomdoctor.records.config import AUTO, TrainConfig
from oomdoctor.records.report import Status, SurveyRequest
from oomdoctor.records.result import ProbeResult

_ANSWERED = ("oom", "unsupported", "skipped")


def exit_of(
    results: Sequence[ProbeResult], interrupted: ExitCode | None = None
) -> tuple[ExitCode, Status]:
    """The exit code and status of a survey; `interrupted` is the code of the signal that ended it.

    Something fits: 0. Nothing fits and every rung gave its answer (out of memory, unsupported, or
    skipped for a reason): 3. Nothing fits, but a rung crashed, failed, hung, ran out of host
    memory or was not reached: 6.
    """
    if interrupted is not None:
        return interrupted, "interrupted"
    if any(result.outcome == "fits" for result in results):
        return ExitCode.OK, "ok"
    if results and all(_answered(result) for result in results):
        return ExitCode.NO, "no"
    return ExitCode.INCONCLUSIVE, "partial"


def next_commands(
    results: Sequence[ProbeResult],
    request: SurveyRequest,
    run_name: str | None,
    *,
    interrupted: bool = False,
) -> tuple[str, ...]:
    """Up to four command lines that follow from the outcome, the most useful first.

    `run_name` is the run's name in the store.
    """
    unfinished = interrupted or any(_not_reached(result) for result in results)
    lines = [f"oomdoctor probe --resume {shlex.quote(run_name or 'latest')}"] if unfinished else []
    if any(result.outcome == "fits" for result in results):
        shown = f" {shlex.quote(run_name)}" if run_name else ""
        return (
            *lines,
            f"oomdoctor show{shown} --verbose",
            f"oomdoctor show{shown} --format json",
        )
    outcomes = {result.outcome for result in results}
    if outcomes & {"crashed", "failed", "timed_out", "host_oom"}:
        lines.append("oomdoctor show --verbose")
    if outcomes & {"failed", "unsupported"}:
        lines.append("oomdoctor env")
    if "timed_out" in outcomes:
        lines.append(_probe(request, ("--rung-timeout", f"{round(2 * request.rung_limit_s)}s")))
    if "oom" in outcomes or any(result.missed_by_bytes is not None for result in results):
        lines += _leaner(results, request)
    return tuple(dict.fromkeys(lines))[:4]


def _leaner(results: Sequence[ProbeResult], request: SurveyRequest) -> list[str]:
    """Ways to need less, each only where it is still open."""
    lines = []
    if not any(result.config.method == "qlora" for result in results):
        lines.append(_probe(request, ("--recipe", "qlora")))
    if request.sequence_length > 512:
        lines.append(_probe(request, ("--seq-len", str(request.sequence_length // 2))))
    if request.micro_batch_size is not None and request.micro_batch_size > 1:
        lines.append(_probe(request, ("--micro-batch", "1")))
    lines.append("oomdoctor models")
    return lines


def _probe(request: SurveyRequest, changed: tuple[str, str]) -> str:
    """The command line of the survey with one option changed; what is default is left out."""
    recipe = request.recipe
    built = recipe.source in ("built-in", "command line")
    options = {"--recipe": recipe.name if built else recipe.source}
    if request.device != "auto":
        options["--device"] = request.device
    if request.vram_bytes is not None:
        options["--vram"] = str(request.vram_bytes)
    options["--seq-len"] = str(request.sequence_length)
    options["--effective-batch"] = str(request.effective_batch_size)
    if request.micro_batch_size is not None:
        options["--micro-batch"] = str(request.micro_batch_size)
    options[changed[0]] = changed[1]
    words = ["oomdoctor", "probe", request.model.name]
    for name, value in options.items():
        words += [name, value]
    if recipe.source == "command line" and changed[0] != "--recipe":
        for rung in recipe.rungs:
            words += ["--rung", _rung_text(rung.config, request)]
    return shlex.join(words)


def _rung_text(config: TrainConfig, request: SurveyRequest) -> str:
    """A rung as `--rung` reads it: what differs from the defaults and from the survey's sizes."""
    micro = request.micro_batch_size
    plain = TrainConfig(
        micro_batch_size=AUTO if micro is None else micro,
        sequence_length=request.sequence_length,
        effective_batch_size=request.effective_batch_size,
    )
    told = []
    for field in fields(TrainConfig):
        value = getattr(config, field.name)
        if value == getattr(plain, field.name) and field.name != "method":
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        else:
            text = "+".join(value) if isinstance(value, tuple) else str(value)
        told.append(f"{field.name}={text}")
    return ",".join(told)


def _answered(result: ProbeResult) -> bool:
    return result.outcome in _ANSWERED and not _not_reached(result)


def _not_reached(result: ProbeResult) -> bool:
    return result.failure is not None and result.failure.code == "not_reached"
