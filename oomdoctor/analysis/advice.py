"""The exit code and status of a survey, and the commands to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace

from oomdoctor.errors import ExitCode
from oomdoctor.records.config import AUTO, TrainConfig
from oomdoctor.records.dataset import LengthsRequest
from oomdoctor.records.plan import PlanRequest, Sweep
from oomdoctor.records.report import Status, SurveyRequest
from oomdoctor.records.result import ProbeResult

_ANSWERED = ("oom", "unsupported", "skipped")


def exit_of(
    results: Sequence[ProbeResult], interrupted: ExitCode | None = None
) -> tuple[ExitCode, Status]:
    """The exit code and status of a survey; `interrupted` is the code of the signal that ended it.

    0: something fits. 3: nothing fits, and every rung has an answer (out of memory, unsupported,
    or skipped for a reason). 6: nothing fits, but a rung crashed, failed, hung, ran out of host
    memory, was not reached, or could not be simulated.
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
    """Up to four commands to type next, the most useful first.

    `run_name` is the run's name in the store.
    """
    if request.plan is not None:
        return _plan_commands(results, request, run_name, interrupted=interrupted)
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
        lines.append(_again(request, ("--rung-timeout", f"{round(2 * request.rung_limit_s)}s")))
    if "oom" in outcomes or any(result.missed_by_bytes is not None for result in results):
        lines += _leaner(results, request)
    return tuple(dict.fromkeys(lines))[:4]


def _plan_commands(
    results: Sequence[ProbeResult],
    request: SurveyRequest,
    run_name: str | None,
    *,
    interrupted: bool,
) -> tuple[str, ...]:
    plan = request.plan
    assert plan is not None
    show = shlex.join(["oomdoctor", "show", *filter(None, [run_name]), "--verbose"])
    if interrupted:
        return (_again(request), show)
    lines = []
    fitting = [result for result in results if result.outcome == "fits"]
    if fitting:
        lines.append(shlex.join(["oomdoctor", "probe", request.model.name, *_ladder(request)]))
        whole = plan.why is None and plan.sweep is None and request.lengths is None
        if len(plan.gpus) == 1 and whole:
            best = max(fitting, key=lambda result: result.tokens_per_s or 0.0)
            lines.append(_again(request, ("--why", best.label)))
    else:
        if not plan.all_gpus and plan.why is None and plan.sweep is None:
            lines.append(_again(replace(request, plan=PlanRequest((), all_gpus=True))))
        lines += _leaner(results, replace(request, plan=replace(plan, why=None)))
    return (*lines[:3], show)


def _leaner(results: Sequence[ProbeResult], request: SurveyRequest) -> list[str]:
    """Commands that need less memory, as far as the request leaves any."""
    lines = []
    if not any(result.config.method == "qlora" for result in results):
        lines.append(_again(request, ("--recipe", "qlora")))
    by_data = request.lengths is not None or _sweeps_length(request)
    if request.sequence_length > 512 and not by_data:
        lines.append(_again(request, ("--seq-len", str(request.sequence_length // 2))))
    if request.micro_batch_size is not None and request.micro_batch_size > 1:
        lines.append(_again(request, ("--micro-batch", "1")))
    lines.append("oomdoctor models")
    return lines


def _again(request: SurveyRequest, changed: tuple[str, str] | None = None) -> str:
    """The command line of the request with one option changed, without defaults."""
    plan = request.plan
    words = ["oomdoctor", "probe" if plan is None else "plan", request.model.name]
    if plan is not None:
        words += ["--all-gpus"] if plan.all_gpus else []
        words += [word for name in plan.gpus for word in ("--gpu", name)]
        words += ["--sweep", _sweep_text(plan.sweep)] if plan.sweep is not None else []
        words += ["--why", plan.why] if plan.why is not None else []
    return shlex.join([*words, *_ladder(request, changed)])


def _ladder(request: SurveyRequest, changed: tuple[str, str] | None = None) -> list[str]:
    """The options for the training and for the device of this machine."""
    recipe = request.recipe
    built = recipe.source in ("built-in", "command line")
    options = {"--recipe": recipe.name if built else recipe.source}
    if request.plan is None and request.device != "auto":
        options["--device"] = request.device
    if request.vram_bytes is not None:
        options["--vram"] = str(request.vram_bytes)
    if request.lengths is not None:
        options |= _data_options(request.lengths)
    elif not _sweeps_length(request):
        options["--seq-len"] = str(request.sequence_length)
    options["--effective-batch"] = str(request.effective_batch_size)
    if request.micro_batch_size is not None:
        options["--micro-batch"] = str(request.micro_batch_size)
    if changed is not None:
        options[changed[0]] = changed[1]
    words = [word for pair in options.items() for word in pair]
    if recipe.source == "command line" and (changed is None or changed[0] != "--recipe"):
        for rung in recipe.rungs:
            words += ["--rung", _rung_text(rung.config, request)]
    return words


def _data_options(lengths: LengthsRequest) -> dict[str, str]:
    packed = lengths.packed_tokens
    options = {
        "--lengths": lengths.file,
        "--tokenizer": lengths.tokenizer,
        "--text-field": lengths.text_field,
        "--seq-len": str(packed) if packed is not None else None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _sweeps_length(request: SurveyRequest) -> bool:
    sweep = request.plan.sweep if request.plan is not None else None
    return sweep is not None and sweep.key == "sequence_length"


def _sweep_text(sweep: Sweep) -> str:
    option = "seq-len" if sweep.key == "sequence_length" else "micro-batch"
    return f"{option}={','.join(map(str, sweep.values))}"


def _rung_text(config: TrainConfig, request: SurveyRequest) -> str:
    """A rung as `--rung` reads it: only what differs from the defaults and the survey's sizes."""
    micro = request.micro_batch_size
    plain = TrainConfig(
        micro_batch_size=AUTO if micro is None else micro,
        sequence_length=request.sequence_length,
        effective_batch_size=request.effective_batch_size,
    )
    settings = []
    for field in fields(TrainConfig):
        value = getattr(config, field.name)
        if value == getattr(plain, field.name) and field.name != "method":
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        else:
            text = "+".join(value) if isinstance(value, tuple) else str(value)
        settings.append(f"{field.name}={text}")
    return ",".join(settings)


def _answered(result: ProbeResult) -> bool:
    if result.outcome == "unsupported" and result.evidence == "predicted":
        return False  # the simulation does not support it; the device may
    return result.outcome in _ANSWERED and not _not_reached(result)


def _not_reached(result: ProbeResult) -> bool:
    return result.failure is not None and result.failure.code == "not_reached"
