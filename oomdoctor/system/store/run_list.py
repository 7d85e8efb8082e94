"""The runs on disk: find one by its name, or list them all.

Nothing is ever deleted here: damaged and foreign folders are reported and left alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.report import Report, SurveyRequest
from oomdoctor.system.machine.lock import is_marked
from oomdoctor.system.store.record_files import read_record
from oomdoctor.system.store.run_folders import (
    PARTIAL,
    REPORT,
    REQUEST,
    RUN_NAME,
    RUNNING,
    RunFolder,
    exists,
    folders,
    runs_dir,
)

_MOST_NAMES = 3  # a plan for more cards is listed by their number


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One folder in the list of runs.

    `status` is the status of the report; "running" or "interrupted" if the run has not ended,
    "unfinished" if it was killed before it had results, "unreadable" if a file is damaged,
    "foreign" if the folder is not a run. `problem` explains the last three. `fits` of
    `rungs` rungs fit.
    """

    name: str
    path: Path
    started_at: str | None
    model: str | None
    device: str | None
    status: str
    fits: int
    rungs: int
    problem: str | None


def open_run(name: str | None = None, *, probes_only: bool = False) -> RunFolder:
    """A run by name or folder, or the latest run (None or "latest").

    With `probes_only`, the latest is the latest probe.

    Raises:
        OomDoctorError: there is no such run (exit 2).
    """
    root = runs_dir()
    if name in (None, "", "latest"):
        found = next(_latest_first(probes_only), None)
        if found is None:
            raise usage_error(
                "no_runs",
                f"there are no {'probes' if probes_only else 'runs'} in {root} yet",
                "make one: oomdoctor probe MODEL" + ", or oomdoctor plan MODEL" * (not probes_only),
            )
        return RunFolder(found)
    named = Path(str(name)).expanduser()
    for path in (root / named, named.absolute()):
        if exists(path / REQUEST):
            return RunFolder(path)
    nearest = difflib.get_close_matches(str(name), run_names(), 3, 0.4)
    meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    raise usage_error(
        "unknown_run",
        f"{name} is not a run in {root} and not a folder with {REQUEST}",
        f"{meant}list the runs: oomdoctor show --list",
    )


def run_names(*, probes_only: bool = False) -> tuple[str, ...]:
    """The names of all runs, latest first; reads no report, and no request unless it must."""
    return tuple(path.name for path in _latest_first(probes_only))


def list_runs() -> tuple[RunSummary, ...]:
    """All folders in the runs folder, latest first; damaged and foreign ones are marked."""
    return tuple(_summary(path) for path in sorted(folders(runs_dir()), key=_age, reverse=True))


def _summary(path: Path) -> RunSummary:
    request: SurveyRequest | None = None
    report: Report | None = None
    problem: str | None
    status, problem = "foreign", "not a run of oomdoctor; left alone"
    try:
        if exists(path / REQUEST):
            request = read_record(SurveyRequest, path / REQUEST)
            status, problem = "unfinished", "killed before it had results"
        if exists(path / PARTIAL):
            report = read_record(Report, path / PARTIAL)
            status, problem = "interrupted", None
        elif exists(path / REPORT):
            report = read_record(Report, path / REPORT)
            status, problem = report.status, None
        if is_marked(path / RUNNING):
            status, problem = "running", None
    except OomDoctorError as error:
        status, problem = "unreadable", error.message
    results = report.results if report else ()
    return RunSummary(
        name=path.name,
        path=path,
        started_at=report.started_at if report else _stamp(path.name),
        model=request.model.name if request else None,
        device=_device_of(report),
        status=status,
        fits=sum(result.outcome == "fits" for result in results),
        rungs=len(results),
        problem=problem,
    )


def _device_of(report: Report | None) -> str | None:
    """The device of a run; for a plan its cards, or how many they are."""
    if report is None or report.machine is None:
        return None
    cards = [card.name for card in report.cards]
    if len(cards) > _MOST_NAMES:
        return f"{len(cards):,} cards"
    return report.machine.gpu_name or ", ".join(cards) or report.machine.device


def _stamp(name: str) -> str | None:
    """The start time in a run's name, which is local, as in a report: ISO 8601 in UTC, or None."""
    if not RUN_NAME.fullmatch(name):
        return None
    try:
        return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").astimezone(UTC).isoformat()
    except ValueError:
        return None


def _latest_first(probes_only: bool) -> Iterator[Path]:
    runs = (path for path in folders(runs_dir()) if exists(path / REQUEST))
    for path in sorted(runs, key=_age, reverse=True):
        if not probes_only or _is_probe(path):
            yield path


def _is_probe(path: Path) -> bool:
    """Whether a run may be a probe; a damaged request is reported when it is opened."""
    try:
        return read_record(SurveyRequest, path / REQUEST).plan is None
    except OomDoctorError:
        return True


def _age(path: Path) -> tuple[str, float, str]:
    """Sorts runs by start time; within one second, by when the request was written."""
    try:
        written = (path / REQUEST).stat().st_mtime
    except OSError:
        written = 0.0
    return (path.name[:15] if RUN_NAME.fullmatch(path.name) else "", written, path.name)
