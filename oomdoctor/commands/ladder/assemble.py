"""The finished report of a survey or a plan: facts, ranking, status, next commands."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from importlib.util import find_spec

from oomdoctor import __version__
from oomdoctor.analysis.advice import deciding, exit_of, measuring_commands, next_commands
from oomdoctor.analysis.ranking import rank
from oomdoctor.commands.export import export_line
from oomdoctor.commands.ladder.ledger import Ledger
from oomdoctor.errors import ExitCode
from oomdoctor.records.codec import shared
from oomdoctor.records.job.machine import Machine, real_name
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.plan import CardPlan
from oomdoctor.records.report.report import (
    SCHEMA,
    Budget,
    ModelFacts,
    Report,
    SurveyRequest,
    Tool,
    Warn,
)
from oomdoctor.records.report.user_training import YourRung
from oomdoctor.records.report.warnings import unusual_sizes, warning
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.environment import is_emulating
from oomdoctor.system.machine.nvml import list_gpus, may_have_gpu
from oomdoctor.system.recipes.recipes import left_out
from oomdoctor.system.store.run_folders import RunFolder

# Where a plan was given a size instead of a card.
SIZE_SOURCE = "as requested"


def warnings_of(request: SurveyRequest) -> list[Warn]:
    """What is said of the ladder before anything of it is tried."""
    warns = unusual_sizes(rung.config for rung in request.recipe.rungs)
    for_one = left_out(
        request.recipe,
        sequence_length=request.sequence_length,
        effective_batch_size=request.effective_batch_size,
        micro_batch_size=request.micro_batch_size,
        gpus=request.gpus,
    )
    return [*warns, *([warning("left_out", names=for_one)] if for_one else [])]


@dataclass(frozen=True, slots=True)
class Course:
    """Where and when a run went on; `interrupted` is the exit code of a signal if one ended it."""

    folder: RunFolder
    started_at: str
    elapsed_s: float
    interrupted: ExitCode | None


def report(
    ledger: Ledger,
    course: Course,
    *,
    machine: Machine,
    budget: Budget | None,
    results: tuple[ProbeResult, ...],
    warnings: tuple[Warn, ...],
    judged: tuple[ProbeResult, ...] | None = None,
    cards: tuple[CardPlan, ...] = (),
    yours: YourRung | None = None,
) -> Report:
    """The public document.

    `warnings` are added to those of the ledger. `judged` are the rows among which are those that
    decide the exit code, by default `results`. `yours` is the answer about the rung of --from if
    the ledger has none yet.
    """
    request, spec, inspection = ledger.request, ledger.spec, ledger.inspection
    yours = ledger.yours or yours
    ranking = rank(results, request.rank_by)
    judged = deciding(results if judged is None else judged, request)
    exit_code, status = exit_of(judged, course.interrupted)
    broken_off = course.interrupted is not None
    pages = all(find_spec(name) is not None for name in ("jinja2", "matplotlib"))
    here = next_commands(
        judged,
        request,
        course.folder.name,
        interrupted=broken_off,
        on_cpu=machine.device == "cpu",
        pages=pages,
        yours=yours,
        remedies=cards[0].remedies if len(cards) == 1 else (),
    )
    sized = _for_size(request, cards, machine)
    measure = measuring_commands(judged, sized, interrupted=broken_off, yours=yours)
    if measure and _is_here(cards):
        here, measure = (*measure, *here)[:4], ()
    if inspection is not None:
        counted = inspection.parameters.total
        spec = replace(spec, architecture=inspection.architecture, parameters=counted)
    # A browser shows a trace.
    snapshots = [file.path for file in ledger.files if file.kind == "snapshot"]
    opening = [shlex.join(["oomdoctor", "snapshot", path]) for path in snapshots]
    report = Report(
        schema=SCHEMA,
        command="probe" if request.plan is None else "plan",
        status=status,
        exit_code=int(exit_code),
        tool=Tool("oomdoctor", __version__),
        started_at=course.started_at,
        elapsed_s=course.elapsed_s,
        run_dir=str(course.folder.path),
        request=request,
        machine=machine,
        model=ModelFacts(
            **shared(spec, ModelFacts),
            weights=request.weights,
            mixture_of_experts=bool(inspection and inspection.parameters.experts),
        ),
        budget=budget,
        results=results,
        ranking=ranking.order,
        ranking_reasons=ranking.reasons,
        picks=ranking.picks,
        next_commands=(*opening, *here),
        next_on_gpu=measure,
        warnings=(*ledger.warnings, *warnings),
        errors=(),
        cards=cards,
        files=ledger.files,
        yours=yours,
    )
    line = None if broken_off else export_line(report, course.folder.name)
    return report if line is None else replace(report, next_commands=_with(report, line))


def _with(report: Report, line: str) -> tuple[str, ...]:
    """The next commands with one more, behind the one that looks at a rung or measures it."""
    lines = report.next_commands
    first = 0 if not lines or lines[0].startswith("oomdoctor show") else 1
    return (*lines[:first], line, *lines[first:])


def _for_size(
    request: SurveyRequest, cards: tuple[CardPlan, ...], machine: Machine
) -> SurveyRequest:
    """The request of a plan or an emulation; a larger card answers for a size of memory."""
    if request.emulate is not None and find_gpu(real_name(machine.gpu_name or "")) is None:
        return replace(request, vram_bytes=request.vram_bytes or machine.total_bytes)
    sized = len(cards) == 1 and cards[0].total_source == SIZE_SOURCE
    return replace(request, vram_bytes=cards[0].total_bytes) if sized else request


def _is_here(cards: tuple[CardPlan, ...]) -> bool:
    """Whether this machine has the one card of a plan, or any GPU where it is just a size."""
    if len(cards) != 1 or not (may_have_gpu() or is_emulating()):  # NVML takes long to load
        return False
    gpus = list_gpus()
    if cards[0].total_source == SIZE_SOURCE:
        return bool(gpus)
    listed = [find_gpu(gpu.name, gpu.total_bytes) for gpu in gpus]
    return any(facts is not None and facts.name == cards[0].name for facts in listed)
