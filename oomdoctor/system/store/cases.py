"""The cases on disk: what `run` left of commands that ran out of memory.

    <state_dir>/cases/20261123-014500-train-a1b2/case.json, ...

A case is a folder, or a zip file of one. Of a zip file only the report is read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePath

from oomdoctor.errors import OomDoctorError, machine_error, usage_error
from oomdoctor.records import codec
from oomdoctor.records.report.report import Report
from oomdoctor.system.environment import state_dir
from oomdoctor.system.regular_files import exists
from oomdoctor.system.store.record_files import MOST_BYTES, read_record, whole_or_not, writing
from oomdoctor.system.store.run_folders import folders, new_folder, slug

CASE, PAGE = "case.json", "report.txt"
_NAMELESS = ("python", "env", "srun", "uv", "poetry", "torchrun", "accelerate", "deepspeed")


def cases_dir() -> Path:
    """The folder of the cases; it may not exist yet."""
    return state_dir() / "cases"


def new_case(command: Sequence[str], given: Path | None) -> Path:
    """A new, empty folder that only this user can read: the given one, or one in `cases_dir`.

    Raises:
        OomDoctorError: it cannot be made (exit 5).
    """
    if given is not None:
        with writing(given):
            given.mkdir(parents=True, exist_ok=True, mode=0o700)
            return given.absolute()
    return new_folder(cases_dir(), _name_of(command), mode=0o700)


def is_case(name: str) -> bool:
    """Whether a name, a folder or a zip file is a case."""
    return _found(name) is not None


def open_case(name: str) -> tuple[Report, Path]:
    """The report of a case, and its folder or zip file.

    Raises:
        OomDoctorError: it is damaged (exit 5).
    """
    path = _found(name)
    if path is None:
        raise usage_error("unknown_case", f"{name} is not a case", "oomdoctor runs")
    if path.is_dir():
        try:
            return read_record(Report, path / CASE), path
        except OomDoctorError as error:
            error.hint = f"{path / PAGE} has the same as text"
            raise
    try:
        with zipfile.ZipFile(path) as archive:
            parts_of = ((entry, PurePath(entry.filename).parts) for entry in archive.infolist())
            member = next(e for e, parts in parts_of if parts[-1:] == (CASE,) and len(parts) <= 2)
            if member.file_size > MOST_BYTES:
                raise ValueError(f"{member.filename} is too large")
            return codec.loads(Report, archive.read(member).decode("utf-8")), path
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile, StopIteration) as error:
        why = str(error) or "it holds no case"
        raise machine_error("unreadable_run", f"cannot read {path}: {why}") from None


def case_names() -> tuple[str, ...]:
    """The names of all cases in the folder of cases, latest first; reads none of them."""
    latest_first = sorted(folders(cases_dir()), reverse=True)
    return tuple(path.name for path in latest_first if exists(path / CASE))


def pack(case: Path, file: Path) -> int:
    """Pack the folder of a case into a zip file and return its size in bytes.

    Links are left out: they may lead out of the case.

    Raises:
        OomDoctorError: the file cannot be written (exit 5).
    """
    with writing(file):
        with whole_or_not(file) as beside:
            with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(case.iterdir()):
                    if path.is_file() and not path.is_symlink():
                        archive.write(path, f"{case.name}/{path.name}")
            beside.chmod(0o600)
        return file.stat().st_size


def _found(name: str) -> Path | None:
    named = Path(name).expanduser()
    for path in (cases_dir() / named, named.absolute()):
        if exists(path / CASE):
            return path
    return named.absolute() if named.suffix == ".zip" and named.is_file() else None


def _name_of(command: Sequence[str]) -> str:
    """A short name for a command: its script, or its first word."""
    scripts = [word for word in command if word.endswith((".py", ".ipynb", ".sh"))]
    others = [word for word in command if not word.startswith("-") and word not in _NAMELESS]
    named = next(iter([*scripts, *others]), "command")
    return slug(PurePath(named).stem, "command")
