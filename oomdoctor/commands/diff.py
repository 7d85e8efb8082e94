"""The two runs that `diff` compares, found by name, by file, or as the last two of a kind."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.analysis.differences.compare import compared
from oomdoctor.analysis.differences.judging import Sides
from oomdoctor.analysis.differences.rows import rows_of
from oomdoctor.analysis.fit import PeakErrors
from oomdoctor.commands.ladder.unfinished import stored_report
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.report.earlier_runs import DiffAnswer, StoredRun
from oomdoctor.records.report.report import Report
from oomdoctor.system.catalogue import peak_errors
from oomdoctor.system.store import cases, run_list
from oomdoctor.system.store.record_files import read_record
from oomdoctor.system.store.run_folders import REPORT

_LINE = "name two runs: oomdoctor diff RUN_A RUN_B; oomdoctor runs lists them"


def difference(before: str | None, after: str | None) -> DiffAnswer:
    """What changed between two runs.

    Without names, those are the last two of the same model and command, on the same device if there
    are. With one, it is compared with the latest other one of its kind.

    Raises:
        OomDoctorError: there are no such runs (exit 2), or one cannot be read (exit 5).
    """
    if before is None:
        before, after = _last_two(None)
    elif after is None:
        before, after = _last_two(before)
    (name, first), (other_name, second) = opened(before), opened(after)
    for called, report in ((name, first), (other_name, second)):
        if not rows_of(report):
            raise usage_error(
                "nothing_to_compare", f"{called} has no results to compare: {_why(report)}", _LINE
            )
    contexts = [card.context for report in (first, second) for card in report.cards]
    off = max(
        (max(share.high - share.likely, share.likely - share.low) for share in contexts), default=0
    )
    sides = Sides(_errors(first), _errors(second), off)
    return compared(first, second, (name, other_name), sides)


def opened(name: str) -> tuple[str, Report]:
    """A report by the name of a run or a case, a folder, a zip file of a case, or a JSON file.

    Raises:
        OomDoctorError: there is none (exit 2), or it cannot be read (exit 5).
    """
    path = Path(name).expanduser()
    if path.is_file() and path.suffix != ".zip":
        try:
            return name, read_record(Report, path)
        except OomDoctorError as error:
            error.hint = "write one with --json, or with --report of `oomdoctor run`"
            raise
    if cases.is_case(name):
        report, run_folder = cases.open_case(name)
        return run_folder.name, report
    if path.is_dir() and not (path / "request.json").exists() and (path / REPORT).is_file():
        return path.name, read_record(Report, path / REPORT)
    folder = run_list.open_run(name)
    return folder.name, stored_report(folder)


def _last_two(named: str | None) -> tuple[str, str]:
    """The names of two runs of a kind, the earlier one first."""
    whole = (run for run in run_list.stored_runs() if run.problem is None)
    runs = [run for run in whole if run.kind == "case" or run.rungs > 0]
    if named is not None:
        name = run_list.open_run(named).name if not cases.is_case(named) else named
        given = next((run for run in runs if run.name == Path(name).name), None)
        partner = None if given is None else _partner(given, runs)
        if given is None or partner is None:
            raise usage_error(
                "no_partner", f"there is no other run of the model and command of {named}", _LINE
            )
        first, last = sorted((given, partner), key=runs.index, reverse=True)
        return first.path, last.path
    for run in runs:
        partner = _partner(run, runs[runs.index(run) + 1 :])
        if partner is not None:
            return partner.path, run.path
    raise usage_error("no_pair", "no two runs have the same model and command", _LINE)


def _partner(run: StoredRun, others: list[StoredRun]) -> StoredRun | None:
    """The latest other run of the same model and command, on the same device if there is one."""
    same = [other for other in others if other.name != run.name and _kind(other) == _kind(run)]
    return next((other for other in same if other.device == run.device), next(iter(same), None))


def _kind(run: StoredRun) -> tuple[object, ...]:
    return run.command, run.model, run.command_line


def _why(report: Report) -> str:
    if report.command in ("probe", "plan", "run"):
        return report.errors[0].message if report.errors else "it found nothing"
    return f"it is a report of {report.command}"


def _errors(report: Report) -> PeakErrors:
    machine = report.machine
    if machine is None:
        return PeakErrors(peak_errors(), None, None)
    card = report.cards[0].compute_capability if len(report.cards) == 1 else None
    torch = (machine.versions.get("torch") or "").partition("+")[0] or None
    return PeakErrors(peak_errors(), card or machine.compute_capability, torch)
