"""The runs on disk: find one by its name, its folder, or the latest.

Deletes the folder of a run or a case, and nothing else.

The folder must lie directly in the folder of runs or cases, be no link, have a name as oomdoctor
gives it, and hold its file. It is locked, renamed, and then deleted, so that no other process sees
half of it. Links in it are removed, not followed.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.report.earlier_runs import StoredRun
from oomdoctor.system.machine.lock import take_lock
from oomdoctor.system.regular_files import exists
from oomdoctor.system.store.cases import CASE, cases_dir
from oomdoctor.system.store.run_folders import (
    REQUEST,
    RUN_NAME,
    RUNNING,
    RunFolder,
    folders,
    runs_dir,
)
from oomdoctor.system.store.stored import started

_TRASH = ".deleted-"


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
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
