"""Run folders: every survey and plan is written to disk as it happens, so it can be shown later.

    <state_dir>/runs/20261121-143000-smollm2-135m-a1b2/
        request.json  partial.json (until it ends)  report.json  running.lock
        problem.txt (the error that ended it)
        01-inspect/  02-full-fp32-mb1/{job.json, attempt.json, ...}

A survey can be resumed from its folder.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error
from oomdoctor.records.job.result import Attempt, ProbeJob
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.system.environment import state_dir
from oomdoctor.system.machine.lock import is_marked, mark
from oomdoctor.system.regular_files import exists, text_of
from oomdoctor.system.store.record_files import read_record, write_record, writing

PARTIAL, RUNNING = "partial.json", "running.lock"
REQUEST, REPORT, JOB, ATTEMPT = "request.json", "report.json", "job.json", "attempt.json"
PROBLEM = "problem.txt"
RUN_NAME = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{4}")
_NAME_LENGTH = 40
_LONGEST_PROBLEM = 1 << 20  # bytes


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
        with contextlib.suppress(OSError):
            (self.path / PARTIAL).unlink(missing_ok=True)

    def write_partial(self, report: Report) -> None:
        """Write what is known so far; `write_report` removes it."""
        write_record(self.path / PARTIAL, report)

    def read_partial(self) -> Report | None:
        """What a run found that has not ended or was killed; None if there is nothing."""
        return read_record(Report, self.path / PARTIAL) if exists(self.path / PARTIAL) else None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Mark the run as running until the block ends or the process dies."""
        with mark(self.path / RUNNING):
            with contextlib.suppress(OSError):
                (self.path / PROBLEM).unlink(missing_ok=True)
            yield

    def note_problem(self, error: Exception) -> None:
        """Keep the error that ended the run, if its folder is still that of a run."""
        if exists(self.path / REQUEST):
            with contextlib.suppress(OSError):
                internal = "" if isinstance(error, OomDoctorError) else "internal error: "
                (self.path / PROBLEM).write_text(f"{internal}{error}", encoding="utf-8")

    def problem(self) -> str:
        """How the run ended without results: with the error that was noted, or it was killed."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return f"ended with an error: {text_of(self.path / PROBLEM, _LONGEST_PROBLEM)}"
        return "was killed before it had results"

    def is_running(self) -> bool:
        """Whether a process of this machine is working on the run."""
        return is_marked(self.path / RUNNING)

    def read_report(self) -> Report:
        """The report; a machine error if it is damaged or was never written."""
        if not exists(self.path / REPORT):
            if self.is_running():
                raise machine_error(
                    "no_report",
                    f"the run {self.name} is still running and has no results yet",
                    f"look again later: oomdoctor show {shlex.quote(self.name)}",
                )
            again = f"oomdoctor probe --resume {shlex.quote(self.name)}"
            if self.read_request().plan is not None:
                again = "make the plan again"
            raise machine_error("no_report", f"the run {self.name} {self.problem()}", again)
        return read_record(Report, self.path / REPORT)

    def job_folder(self, label: str, micro_batch: int | None) -> Path:
        """A new folder for one worker process, such as `03-full-bf16-ckpt-mb4`.

        The number is one above the highest, so a resumed run never overwrites anything.
        """
        size = "" if micro_batch is None else f"-mb{micro_batch}"
        name = slug(label, "job") + size
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
        tries = []
        for _, folder in _numbered(self.path):
            try:
                job = read_record(ProbeJob, folder / JOB)
                # Other answers are cheap, and depend on today's machine and data.
                if job.mode != "measure":
                    continue
                if exists(folder / ATTEMPT):
                    tries.append((job, read_record(Attempt, folder / ATTEMPT)))
                elif on_note:
                    on_note(f"repeating {folder.name}: it was interrupted")
            except OomDoctorError as error:
                if on_note:
                    on_note(f"repeating {folder.name}: {error.message}")
        return tuple(tries)


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
    name = slug(model_id.rstrip("/").rpartition("/")[2], "model")
    return RunFolder(new_folder(runs_dir(), name))


def new_folder(root: Path, name: str, mode: int = 0o777) -> Path:
    """A new, empty folder in `root`, named after the local time and `name`.

    Raises:
        OomDoctorError: it cannot be made (exit 5).
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        while True:
            path = root / f"{stamp}-{name}-{secrets.token_hex(2)}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode)
                return path


def folders(root: Path) -> list[Path]:
    """The folders in a folder; none if it cannot be read."""
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []


def _numbered(root: Path) -> list[tuple[int, Path]]:
    numbered = []
    for path in folders(root):
        head = path.name.partition("-")[0]
        if head.isascii() and head.isdigit():
            numbered.append((int(head), path))
    return sorted(numbered)


def slug(text: str, otherwise: str) -> str:
    """A text as a part of a folder's name; `otherwise` if nothing is left of it."""
    plain = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    return plain[:_NAME_LENGTH].rstrip("-.") or otherwise
