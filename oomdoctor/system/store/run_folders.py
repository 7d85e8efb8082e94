"""Run folders: every survey and plan is written to disk as it happens, so it can be shown later.

    <state_dir>/runs/20261121-143000-smollm2-135m-a1b2/
        request.json  report.json  01-inspect/  02-full-fp32-mb1/{job.json, attempt.json, ...}

A survey can be resumed from its folder. Nothing is ever deleted here: damaged and foreign folders
are reported and left alone.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error, usage_error
from oomdoctor.records.report import Report, SurveyRequest
from oomdoctor.records.result import Attempt, ProbeJob
from oomdoctor.system.environment import state_dir
from oomdoctor.system.machine.lock import device_lock
from oomdoctor.system.store.record_files import read_record, write_record, writing

__all__ = [
    "RunFolder",
    "RunSummary",
    "create",
    "device_lock",
    "list_runs",
    "open_run",
    "read_record",
    "runs_dir",
    "save_attempt",
    "write_record",
]

REQUEST, REPORT, JOB, ATTEMPT = "request.json", "report.json", "job.json", "attempt.json"
_RUN_NAME = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{4}")
_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One folder in the list of runs.

    `status` is the status of the report; "unfinished" if there is none, "unreadable" if a file is
    damaged, "foreign" if the folder is not a run. `problem` explains the last three. `fits` of
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


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one survey or plan. Every write may raise a machine error (exit 5)."""

    path: Path

    @property
    def name(self) -> str:
        """The name for `show` and `--resume`."""
        return self.path.name

    def write_request(self, request: SurveyRequest) -> None:
        """Write the request, which is enough to resume the run."""
        write_record(self.path / REQUEST, request)

    def read_request(self) -> SurveyRequest:
        """The request; a machine error if it is missing or damaged."""
        return read_record(SurveyRequest, self.path / REQUEST)

    def write_report(self, report: Report) -> None:
        """Write the report, or the partial report of an interrupted survey."""
        write_record(self.path / REPORT, report)

    def read_report(self) -> Report:
        """The report; a machine error if it is damaged or was never written."""
        if not _exists(self.path / REPORT):
            raise machine_error(
                "no_report",
                f"the run {self.name} has no report: it is still running or was killed",
                self._how_to_continue(),
            )
        return read_record(Report, self.path / REPORT)

    def _how_to_continue(self) -> str:
        request = self.read_request()
        if request.plan is None:
            return f"oomdoctor probe --resume {shlex.quote(self.name)}"
        model = shlex.quote(request.model.name)
        return f"run `oomdoctor plan {model}` again with the same options: it takes seconds"

    def job_folder(self, label: str, micro_batch: int | None) -> Path:
        """A new folder for one worker process, such as `03-full-bf16-ckpt-mb4`.

        The number is one above the highest, so a resumed run never overwrites anything.
        """
        size = "" if micro_batch is None else f"-mb{micro_batch}"
        name = _slug(label, "job") + size
        with writing(self.path):
            number = max((n for n, _ in _numbered(self.path)), default=0) + 1
            folder = self.path / f"{number:02d}-{name}"
            folder.mkdir()
        return folder

    def attempts(
        self, on_note: Callable[[str], None] | None = None
    ) -> tuple[tuple[ProbeJob, Attempt], ...]:
        """Finished measuring jobs and their results, oldest first.

        Interrupted jobs and jobs with damaged files are left out and reported to `on_note`.
        """
        found = []
        for _, folder in _numbered(self.path):
            try:
                job = read_record(ProbeJob, folder / JOB)
                # Other answers are cheap, and depend on today's machine and data.
                if job.mode != "measure":
                    continue
                found.append((job, read_record(Attempt, folder / ATTEMPT)))
            except OomDoctorError as error:
                if on_note:
                    on_note(f"repeating {folder.name}: {error.message}")
        return tuple(found)


def save_attempt(folder: Path, attempt: Attempt) -> None:
    """Write the result of a job to its folder, so that `--resume` does not repeat it."""
    write_record(folder / ATTEMPT, attempt)


def runs_dir() -> Path:
    """The folder of the run folders; it may not exist yet."""
    return state_dir() / "runs"


def create(model_id: str) -> RunFolder:
    """A new, empty run folder, named after the local time and the model.

    Raises:
        OomDoctorError: the state folder is not writable (exit 5).
    """
    root = runs_dir()
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    model = _slug(model_id.rstrip("/").rpartition("/")[2], "model")
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        while True:
            path = root / f"{stamp}-{model}-{secrets.token_hex(2)}"
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return RunFolder(path)


def open_run(name: str | None = None) -> RunFolder:
    """A run by name or folder, or the latest run (None or "latest").

    Raises:
        OomDoctorError: there is no such run (exit 2).
    """
    root = runs_dir()
    runs = [path for path in _folders(root) if _exists(path / REQUEST)]
    if name in (None, "", "latest"):
        if not runs:
            raise usage_error(
                "no_runs",
                f"there are no runs in {root} yet",
                "make one: oomdoctor probe MODEL, or oomdoctor plan MODEL",
            )
        return RunFolder(max(runs, key=_age))
    named = Path(str(name)).expanduser()
    for path in (root / named, named.absolute()):
        if _exists(path / REQUEST):
            return RunFolder(path)
    nearest = difflib.get_close_matches(str(name), [path.name for path in runs], 3, 0.4)
    meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    raise usage_error(
        "unknown_run",
        f"{name} is not a run in {root} and not a folder with {REQUEST}",
        f"{meant}list the runs: oomdoctor show --list",
    )


def list_runs() -> tuple[RunSummary, ...]:
    """All folders in the runs folder, latest first; damaged and foreign ones are marked."""
    return tuple(_summary(path) for path in sorted(_folders(runs_dir()), key=_age, reverse=True))


def _summary(path: Path) -> RunSummary:
    request: SurveyRequest | None = None
    report: Report | None = None
    problem: str | None
    status, problem = "foreign", "not a run of oomdoctor; left alone"
    try:
        if _exists(path / REQUEST):
            request = read_record(SurveyRequest, path / REQUEST)
            status, problem = "unfinished", "no report: still running, or killed"
        if _exists(path / REPORT):
            report = read_record(Report, path / REPORT)
            status, problem = report.status, None
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
    if report is None or report.machine is None:
        return None
    return report.machine.gpu_name or report.machine.device


def _stamp(name: str) -> str | None:
    """The start time in a run's name as local ISO time; None for other names."""
    if not _RUN_NAME.fullmatch(name):
        return None
    try:
        return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").isoformat()
    except ValueError:
        return None


def _age(path: Path) -> tuple[str, float, str]:
    """Sorts runs by start time; within one second, by when the request was written."""
    try:
        written = (path / REQUEST).stat().st_mtime
    except OSError:
        written = 0.0
    return (path.name[:15] if _RUN_NAME.fullmatch(path.name) else "", written, path.name)


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        # A file without read permission exists: reading it reports the error.
        return isinstance(error, PermissionError)
    return True


def _numbered(root: Path) -> list[tuple[int, Path]]:
    numbered = []
    for path in _folders(root):
        head = path.name.partition("-")[0]
        if head.isascii() and head.isdigit():
            numbered.append((int(head), path))
    return sorted(numbered)


def _slug(text: str, otherwise: str) -> str:
    plain = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    return plain[:_NAME_LENGTH].rstrip("-.") or otherwise
