"""Where a job wrote its output: what Slurm says, else the options of its submission.

Slurm before 24.05 forgets the paths a few minutes after the end of a job. The line that submitted
it is kept, and the script that it names has the rest. Nothing of it is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from oomdoctor.system.regular_files import is_there, text_of

_OPTIONS = {"-o": "out", "--output": "out", "-e": "err", "--error": "err"}
_LARGEST_SCRIPT = 1 << 18  # bytes
_MOST_DIGITS = 10  # sbatch pads a number to no more, and nothing else
_PATTERN = re.compile(r"%(\d*)([%jAaxuNnt])")
_ID = re.compile(r"(?<![\d_])(\d+(?:[_+]\d+)?)(?![\d_])")
_SUFFIXES = (".out", ".err", ".log", ".txt")


@dataclass(frozen=True, slots=True)
class Submission:
    """What names the output of a job. `raw_id` is its own id, also for a task of an array."""

    id: str
    raw_id: str
    name: str
    user: str
    node: str
    work_dir: Path
    line: str
    told: tuple[str, ...] = ()


@dataclass(slots=True)
class Folders:
    """Log files by the ids in their names. Each folder is listed once, however many jobs ask."""

    _listed: dict[Path, dict[str, list[Path]]] = field(default_factory=dict)
    _scripts: dict[Path, tuple[str, ...]] = field(default_factory=dict)

    def bearing(self, folder: Path, job: str) -> list[Path]:
        """The logs in a folder whose names have this id."""
        if folder not in self._listed:
            by_job: dict[str, list[Path]] = {}
            for path in _logs(folder):
                for name in _ID.findall(path.name):
                    by_job.setdefault(name, []).append(path)
            self._listed[folder] = by_job
        return self._listed[folder].get(job, [])

    def directives(self, script: Path) -> tuple[str, ...]:
        """The words of the #SBATCH lines of a script; none if it cannot be read."""
        if script not in self._scripts:
            self._scripts[script] = _directives(script)
        return self._scripts[script]


def output_files(job: Submission, folders: Folders) -> tuple[Path, ...]:
    """The files that a job wrote, as far as they are still there."""
    named = [job.work_dir / path for path in job.told] or [
        job.work_dir / _expanded(pattern, job) for pattern in _patterns(job, folders)
    ]
    usual = job.id if "_" in job.id else job.raw_id
    return _there(named) or usual_files(job.work_dir, job.id, usual, folders)


def usual_files(folder: Path, job: str, raw_id: str, folders: Folders) -> tuple[Path, ...]:
    """slurm-ID.out, else the logs with the id of a job in their name."""
    return _there([folder / f"slurm-{raw_id}.out"]) or _there(folders.bearing(folder, job))


def _there(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path for path in paths if is_there(path)))


def _patterns(job: Submission, folders: Folders) -> list[str]:
    """What -o and -e say: the command line wins over the script."""
    words = _words(job.line)
    scripts = [job.work_dir / word for word in words[1:] if not word.startswith("-")]
    given = _given(words)
    for script in scripts[:4]:  # an option's value may look like a script
        for kind, value in _given(folders.directives(script)).items():
            given.setdefault(kind, value)
    return list(given.values())


def _given(words: Iterable[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    waiting: str | None = None
    for word in words:
        if waiting is not None:
            options[waiting], waiting = word, None
            continue
        name, equals, value = word.partition("=")
        if name in _OPTIONS and equals:
            options[_OPTIONS[name]] = value
        elif word in _OPTIONS:
            waiting = _OPTIONS[word]
        elif word[:2] in ("-o", "-e") and len(word) > 2 and not word.startswith("--"):
            options[_OPTIONS[word[:2]]] = word[2:]
    return options


def _expanded(pattern: str, job: Submission) -> str:
    whole, _, task = job.id.partition("_")
    values = {"%": "%", "j": job.raw_id, "A": whole, "a": task, "x": job.name, "u": job.user,
              "N": job.node, "n": "0", "t": "0"}  # fmt: skip

    def filled(match: re.Match[str]) -> str:
        value, width = values[match[2]], int(match[1][:9] or 0)
        return value.zfill(min(width, _MOST_DIGITS)) if value.isdecimal() else value

    return _PATTERN.sub(filled, pattern)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is never closed
        return line.split()


def _directives(script: Path) -> tuple[str, ...]:
    try:
        text = text_of(script, _LARGEST_SCRIPT, errors="replace")
    except (OSError, ValueError):  # a name with a NUL
        return ()
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            words += _words(line.removeprefix("#SBATCH").partition(" #")[0])
        elif line.strip() and not line.startswith("#"):
            break  # Slurm reads no directive after the first command
    return tuple(words)


def _logs(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    except OSError:
        return []
