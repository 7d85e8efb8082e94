"""The exit code and status of a survey, and the commands to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.analysis.changes.table import TABLE
from oomdoctor.analysis.command_line import command_line, sweeps_length
from oomdoctor.analysis.ranking import best
from oomdoctor.errors import ExitCode
from oomdoctor.records.configuration.config import Recipe, Rung
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.plan import PlanRemedy, PlanRequest
from oomdoctor.records.report.report import Status, SurveyRequest
from oomdoctor.records.report.searched import SolvedKey
from oomdoctor.records.report.user_training import YOURS, YourRung

_ANSWERED = ("oom", "unsupported", "skipped")


def deciding(results: Sequence[ProbeResult], request: SurveyRequest) -> tuple[ProbeResult, ...]:
    """The rows that the exit code and the next commands are about.

    With --from these are the rows of the user's own rung, whatever the rest of the ladder does.
    """
    if request.user_training is None:
        return tuple(results)
    return tuple(result for result in results if result.label == YOURS)


def exit_of(
    results: Sequence[ProbeResult], interrupted: ExitCode | None = None
) -> tuple[ExitCode, Status]:
    """The exit code and status of a survey, by its `deciding` rows.

    `interrupted` is the code of the signal that ended it. 0: something surely fits. 3: nothing
    fits, and every rung has an answer (out of memory, unsupported, or skipped for a reason). 6:
    nothing surely fits, but a rung is borderline, crashed, failed, hung, ran out of host memory,
    was not reached, or could not be simulated.
    """
    if interrupted is not None:
        return interrupted, "interrupted"
    if any(result.surely_fits for result in results):
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
    on_cpu: bool = False,
    pages: bool = False,
    yours: YourRung | None = None,
    remedies: Sequence[PlanRemedy] = (),
) -> tuple[str, ...]:
    """Up to four commands to type next, the most useful first; each can be pasted.

    `results` are the `deciding` rows. `run_name` is the run's name in the store. `on_cpu`: a probe
    ran on the CPU. `pages`: this machine can make pages for a browser. `yours` is the answer about
    the rung of --from, and `remedies` are the changes that a plan simulated for its methods.
    """
    show = shlex.join(["oomdoctor", "show", *filter(None, [run_name])])
    if yours is not None and yours.aim == "fits" and not interrupted:
        return (*_with_change(request, yours), f"{show} --verbose")
    if request.plan is not None:
        by_basis = sorted(remedies, key=lambda remedy: remedy.basis != "simulated")
        changed = [r.rung for r in by_basis if r.rung and r.basis in ("simulated", "bound")]
        return _plan_commands(results, request, show, changed, interrupted=interrupted, pages=pages)
    unfinished = interrupted or any(_not_reached(result) for result in results)
    lines = [f"oomdoctor probe --resume {shlex.quote(run_name or 'latest')}"] if unfinished else []
    if any(result.surely_fits for result in results):
        return (*lines, f"{show} --verbose", f"{show} {_page(pages)}")
    outcomes = {result.outcome for result in results}
    if outcomes & {"crashed", "failed", "timed_out", "host_oom"}:
        lines.append(f"{show} --verbose")
    if outcomes & {"failed", "unsupported"}:
        lines.append("oomdoctor env")
    # Another ladder may take longer, for which a CPU that was not asked for is refused.
    asked = replace(request, device="cpu") if on_cpu and request.device == "auto" else request
    if "timed_out" in outcomes:
        lines.append(command_line(asked, {"--rung-timeout": f"{round(2 * request.rung_limit_s)}s"}))
    if "oom" in outcomes or any(result.missed_by_bytes is not None for result in results):
        lines += _leaner(results, asked)
    return tuple(dict.fromkeys(lines))[:4]


def measuring_commands(
    results: Sequence[ProbeResult],
    request: SurveyRequest,
    *,
    interrupted: bool = False,
    yours: YourRung | None = None,
) -> tuple[str, ...]:
    """The command that measures what fits by a plan or an emulation, where there is such a GPU.

    A rung of --from that fits only with a change is measured with it.
    """
    plan = request.plan
    fitting = [result for result in results if result.surely_fits]
    changed = yours.changes[:1] if yours is not None else ()
    if interrupted or (plan is None and request.emulate is None) or not (fitting or changed):
        return ()
    asked = request
    if plan is not None and not changed:
        asked = request if plan.solve is None else _largest_alone(fitting, request, plan.solve)
        asked = asked if plan.fewest is None else _on_fewest(fitting, request)
    probe = replace(asked, plan=None, device="auto", emulate=None)
    probe = probe if plan is None else replace(probe, rung_limit_s=600.0, predict=True)
    alone = {"--recipe": "none", "--rung": changed[0].rung} if changed else None
    return (command_line(probe, alone),)


def _plan_commands(
    results: Sequence[ProbeResult],
    request: SurveyRequest,
    show: str,
    changed: Sequence[str | None],
    *,
    interrupted: bool,
    pages: bool,
) -> tuple[str, ...]:
    plan = request.plan
    assert plan is not None
    if interrupted:
        return (command_line(request), f"{show} --verbose")
    lines = []
    fitting = [result for result in results if result.surely_fits]
    if fitting and plan.fewest is not None:
        lines.append(command_line(_on_fewest(fitting, request)))
    elif fitting and plan.solve is not None:
        unsolved = replace(request, plan=replace(plan, solve=None))
        lines.append(command_line(_largest_alone(fitting, unsolved, plan.solve)))
    elif fitting and len(plan.gpus) == 1 and _is_ladder(plan) and request.lengths is None:
        first = best(tuple(fitting), request.rank_by)
        alone = replace(request, plan=replace(plan, verify=False))
        lines.append(command_line(alone, {"--why": first.label}))
    elif not fitting:
        ask = replace(request, plan=replace(plan, why=None))
        lines += [command_line(ask, {"--recipe": "none", "--rung": rung}) for rung in changed]
        if not plan.all_gpus and _is_ladder(plan):
            lines.append(command_line(replace(request, plan=PlanRequest((), all_gpus=True))))
        lines += _leaner(results, ask) if not changed else []
    if fitting and pages:
        return (*lines[:2], f"{show} --verbose", f"{show} {_page(pages)}")
    return (*lines[:3], f"{show} --verbose")


def _with_change(request: SurveyRequest, yours: YourRung) -> tuple[str, ...]:
    """What to ask about a rung of --from that does not fit: its best change, or another card."""
    alone = {"--recipe": "none"}
    plan = request.plan
    if not yours.changes:
        if plan is None or plan.all_gpus:
            return ()
        cards = replace(request, plan=PlanRequest((), all_gpus=True))
        return (command_line(cards, alone),)
    if plan is None:
        return (command_line(request, {**alone, "--rung": yours.changes[0].rung}),)
    ask = replace(request, plan=replace(plan, why=None, verify=False))
    change = command_line(ask, {**alone, "--rung": yours.changes[0].rung})
    return (change, command_line(ask, {**alone, "--why": YOURS}))


def _page(pages: bool) -> str:
    """How to get the whole report: with charts, or for a program."""
    return "--html report.html" if pages else "--format json"


def _largest_alone(
    fitting: Sequence[ProbeResult], request: SurveyRequest, key: SolvedKey
) -> SurveyRequest:
    """The request with only the rung that fits at the largest value of `key`, at that value.

    Of several, it is the first of the ladder, as in the headline of the answer.
    """
    first = max(fitting, key=lambda result: getattr(result.config, key))
    rungs = (Rung(first.label, first.config),)
    return replace(request, recipe=Recipe("none", "", rungs, "command line"))


def _on_fewest(fitting: Sequence[ProbeResult], request: SurveyRequest) -> SurveyRequest:
    """The request for the fewest GPUs on which a rung fits, with the rungs that fit there."""
    assert request.plan is not None
    gpus = min(result.config.world_size for result in fitting)
    there = [result for result in fitting if result.config.world_size == gpus]
    batch = there[0].config.effective_batch_size
    rungs = tuple(Rung(result.label, result.config.with_micro_batch(AUTO)) for result in there)
    return replace(
        request,
        plan=replace(request.plan, fewest=None),
        gpus=gpus,
        effective_batch_size=batch,
        recipe=Recipe("none", "", rungs, "command line"),
    )


def _is_ladder(plan: PlanRequest) -> bool:
    """Whether the plan has no question beside its ladder."""
    return not plan.asks_more and plan.fewest is None


def _leaner(results: Sequence[ProbeResult], request: SurveyRequest) -> list[str]:
    """Commands that need less memory where no change was simulated, in the order of the table.

    What changes the training comes with the smaller micro-batch, which keeps it.
    """
    options: dict[str, dict[str, str | None]] = {}
    smaller: dict[str, str | None] = {}
    if request.micro_batch_size is not None and request.micro_batch_size > 1:
        smaller = {"--micro-batch": "1"}
        options["smaller_batch"] = smaller
    if not any(result.config.method == "qlora" for result in results):
        leaner = "qlora" if request.most_gpus() == 1 else "sharded-lora"
        options["qlora"] = {"--recipe": leaner, **smaller}
    by_data = request.lengths is not None or sweeps_length(request)
    if request.sequence_length > 512 and not by_data:
        options["shorter_sequence"] = {"--seq-len": str(request.sequence_length // 2), **smaller}
    lines = [command_line(request, options[row.key]) for row in TABLE if row.key in options]
    return [*lines, "oomdoctor models"]


def _answered(result: ProbeResult) -> bool:
    if result.outcome == "unsupported" and result.evidence == "predicted":
        return False  # the simulation does not support it; the device may
    return result.outcome in _ANSWERED and not result.borderline and not _not_reached(result)


def _not_reached(result: ProbeResult) -> bool:
    return result.failure is not None and result.failure.code == "not_reached"
