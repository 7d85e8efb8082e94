"""The runs and cases on disk: one line of a list for each, found by name or folder, or deleted.

Nothing here stops at a damaged folder: it is listed with the reason. Links are listed, but what
they lead to is neither measured nor deleted.

A folder is only deleted if it lies directly in the folder of runs or cases, is no link, has a name
as oomdoctor gives it, and holds its file. It is locked, renamed, and then deleted, so that no other
process sees half of it. Links in it are removed, not followed.
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.report.diagnosis import RESOURCE_WORDS
from oomdoctor.records.report.earlier_runs import RunKind, StoredRun
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.system.machine.lock import take_lock
from oomdoctor.system.regular_files import exists, size_of
from oomdoctor.system.store.cases import CASE, cases_dir
from oomdoctor.system.store.record_files import read_record
from oomdoctor.system.store.run_folders import (
    REPORT,
    REQUEST,
    RUN_NAME,
    RUNNING,
    RunFolder,
    folders,
    runs_dir,
)

_MOST_NAMES = 3  # a plan for more cards is listed by their number
_LONGEST = 80  # characters of a problem; `show` says all of it
_TRASH = ".deleted-"


def stored_runs() -> Iterator[StoredRun]:
    """The folders of runs and cases, latest first; each is read when it is its turn."""
    places = [(path, False) for path in folders(runs_dir())]
    places += [(path, True) for path in folders(cases_dir()) if exists(path / CASE)]
    for path, case in sorted(places, key=lambda place: started(place[0]), reverse=True):
        if not path.name.startswith("."):  # what is being deleted
            yield _case(path) if case else _run(path)


def started(path: Path) -> tuple[str, float, str]:
    """Sorts runs by start time; within one second, by when the request was written."""
    written = 0.0
    for name in (REQUEST, CASE):
        with suppress(OSError):
            written = written or (path / name).stat().st_mtime
    return (path.name[:15] if RUN_NAME.fullmatch(path.name) else "", written, path.name)


def _run(path: Path) -> StoredRun:
    request: SurveyRequest | None = None
    report: Report | None = None
    folder = RunFolder(path)
    row = replace(_bare(path, "run"), problem="not a run of oomdoctor; left alone")
    try:
        if exists(path / REQUEST):
            request = folder.read_request()
            row = replace(row, status="unfinished", problem=folder.problem())
        report = folder.read_partial()
        if report is not None:
            row = replace(row, status="interrupted", problem=None)
        elif exists(path / REPORT):
            report = read_record(Report, path / REPORT)
            row = replace(row, status=report.status, problem=None)
    except OomDoctorError as error:
        row = replace(row, status="unreadable", problem=error.message)
    if folder.is_running():  # also if a file is damaged: nobody may delete it now
        row = replace(row, status="running", problem=None)
    verb = None if request is None else "probe" if request.plan is None else "plan"
    fits, rungs = _counts(report)
    return replace(
        row,
        command=report.command if report else verb,
        model=request.model.name if request else None,
        device=_device(report),
        started_at=report.started_at if report else _stamp(path.name),
        fits=fits,
        rungs=rungs,
        outcome=_outcome(row, report, fits, rungs),
    )


def _case(path: Path) -> StoredRun:
    row = replace(_bare(path, "case"), status="unreadable", command="run")
    try:
        report = read_record(Report, path / CASE)
    except OomDoctorError as error:
        outcome = _unreadable(path.name, error.message)
        return replace(row, started_at=_stamp(path.name), problem=error.message, outcome=outcome)
    resources = (diagnosis.resource for diagnosis in report.diagnoses if diagnosis.is_oom)
    resource = next(resources, None)
    named = report.device.gpu_name if report.device is not None else None
    count = report.device.gpus if report.device is not None else 1
    return replace(
        row,
        command_line=report.command_line,
        device=_several(named, count),
        started_at=report.started_at,
        status=report.status,
        outcome=RESOURCE_WORDS[resource] if resource else "ran to its end",
    )


def _bare(path: Path, kind: RunKind) -> StoredRun:
    size, changed = size_of(path)
    return StoredRun(path.name, kind, str(path), changed_at=changed, size_bytes=size)


def _counts(report: Report | None) -> tuple[int, int]:
    """How many fit of how many rungs; of how many cards, if a plan is for several."""
    if report is None:
        return 0, 0
    if report.results:
        return sum(result.surely_fits for result in report.results), len(report.results)
    if len(report.cards) == 1:
        return report.cards[0].fitting, report.cards[0].rungs
    return sum(card.fitting > 0 for card in report.cards), len(report.cards)


def _unreadable(name: str, problem: str) -> str:
    """The problem in a line of the list, which has the name of the run already."""
    said = problem.removeprefix(f"cannot read {name}/")
    return f"unreadable: {shorten(said, _LONGEST, placeholder='...')}"


def _outcome(row: StoredRun, report: Report | None, fits: int, rungs: int) -> str:
    if row.problem is not None:
        return _unreadable(row.name, row.problem) if row.status == "unreadable" else row.problem
    cards = report is not None and not report.results and len(report.cards) > 1
    counted = f"{fits} of {rungs} {'cards fit' if cards else 'fit'}" if rungs else ""
    if report is not None and report.errors and not rungs:
        counted = report.errors[0].message
    if row.status in ("running", "interrupted", "error"):
        return f"{row.status}, {counted}" if counted else row.status
    return counted or row.status


def _device(report: Report | None) -> str | None:
    """The device of a run; for a plan its cards, or how many they are."""
    if report is None or report.machine is None:
        return None
    cards = [card.name for card in report.cards]
    if len(cards) > _MOST_NAMES:
        return f"{len(cards):,} cards"
    named = report.machine.gpu_name
    return _several(named, report.machine.gpus) or ", ".join(cards) or report.machine.device


def _several(name: str | None, count: int) -> str | None:
    return f"{count} x {name}" if name is not None and count > 1 else name


def _stamp(name: str) -> str | None:
    """The start time in a run's name, which is local, as in a report: ISO 8601 in UTC, or None."""
    if not RUN_NAME.fullmatch(name):
        return None
    try:
        return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").astimezone(UTC).isoformat()
    except ValueError:
        return None


def open_run(name: str | None = None, *, probes_only: bool = False) -> RunFolder:
    """A run by name or folder, or the latest run (None or "latest").

    With `probes_only`, the latest is the latest probe.

    Raises:
        OomDoctorError: there is no such run (exit 2).
    """
    root = runs_dir()
    if name in (None, "", "latest"):
        latest = next(_latest_first(probes_only), None)
        if latest is None:
            raise usage_error(
                "no_runs",
                f"there are no {'probes' if probes_only else 'runs'} in {root} yet",
                "make one: oomdoctor probe MODEL" + ", or oomdoctor plan MODEL" * (not probes_only),
            )
        return RunFolder(latest)
    named = Path(str(name)).expanduser()
    for path in (root / named, named.absolute()):
        if exists(path / REQUEST):
            return RunFolder(path)
    nearest = difflib.get_close_matches(str(name), run_names(), 3, 0.4)
    meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    raise usage_error(
        "unknown_run",
        f"{name} is not a run in {root} and not a folder with {REQUEST}",
        f"{meant}list the runs: oomdoctor runs",
    )


def run_names(*, probes_only: bool = False) -> tuple[str, ...]:
    """The names of all runs, latest first; reads no report, and no request unless it must."""
    return tuple(path.name for path in _latest_first(probes_only))


def _latest_first(probes_only: bool) -> Iterator[Path]:
    runs = (path for path in folders(runs_dir()) if exists(path / REQUEST))
    for path in sorted(runs, key=started, reverse=True):
        if not probes_only or _is_probe(path):
            yield path


def _is_probe(path: Path) -> bool:
    """Whether a run may be a probe; a damaged request is reported when it is opened."""
    try:
        return RunFolder(path).read_request().plan is None
    except OomDoctorError:
        return True


def remove(run: StoredRun) -> str | None:
    """Delete a run; returns why it was left alone, or None if it is gone."""
    root, mark = (cases_dir(), CASE) if run.kind == "case" else (runs_dir(), REQUEST)
    path = root / run.name
    if not RUN_NAME.fullmatch(run.name) or Path(run.path) != path:
        return "its name is not one that oomdoctor gives"
    if path.is_symlink() or not path.is_dir():
        return "it is a link, or no folder"
    if not (path / mark).is_file():
        return f"it has no {mark}"
    try:
        lock = os.open(path / RUNNING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        return error.strerror or str(error)
    try:
        if not take_lock(lock, quiet=True):
            return "it is still running"
        trash = root / f"{_TRASH}{run.name}-{os.getpid()}"
        path.rename(trash)
        shutil.rmtree(trash)
    except OSError as error:
        return f"{error.strerror or error}"
    finally:
        os.close(lock)
    return None


def remove_leftovers() -> None:
    """Delete what a killed process had renamed and not yet deleted."""
    for root in (runs_dir(), cases_dir()):
        for path in folders(root):
            if path.name.startswith(_TRASH) and not path.is_symlink():
                with suppress(OSError):
                    shutil.rmtree(path)
