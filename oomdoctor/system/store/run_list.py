"""The runs on disk: find one by its name, its folder, or the latest."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.report import SurveyRequest
from oomdoctor.system.store.record_files import read_record
from oomdoctor.system.store.run_folders import REQUEST, RunFolder, exists, folders, runs_dir
from oomdoctor.system.store.stored import started


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
        return read_record(SurveyRequest, path / REQUEST).plan is None
    except OomDoctorError:
        return True
