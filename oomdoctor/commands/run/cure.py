"""Proves a remedy: the changed training runs on the emulated GPUs, and fits.

A remedy changes a file that the command names, its own options, or else its `TrainingArguments`
while it runs. The user's files stay as they are: a changed one is a copy.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oomdoctor.commands.explain.applied import (
    applied_to_command,
    applied_to_file,
    changed_text,
    trainer_settings,
)
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.explain.remedies.wording import with_peaks
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import AppliedRemedy, Proof
from oomdoctor.stacks.reading.command_line import command_of
from oomdoctor.system.settings_file import read_text
from oomdoctor.units import format_bytes

_MOST_CURES = 3
_ORDER = ("run", "replay", "no", None)
_SETTINGS = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class Change:
    """A remedy in a training: in a file, in the words of its command, or in its settings alone.

    `command` is what to type with it. `settings` are of transformers' `TrainingArguments`, which
    the processes change where no file says them.
    """

    command: tuple[str, ...]
    applied: AppliedRemedy | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def files_in(command: Sequence[str]) -> list[str]:
    """The files of a command that may say settings: those of settings first, then scripts."""
    words = [word.rpartition("=")[2] for word in command]
    named = [word for word in words if Path(word).suffix in (*_SETTINGS, ".py")]
    there = [word for word in dict.fromkeys(named) if Path(word).is_file()]
    return sorted(there, key=lambda word: word.endswith(".py"))


def change_of(
    request: WatchRequest, remedy: Remedy, number: int, file: str | None
) -> Change | None:
    """A remedy in the training of a command, or only in a `file`; None if it is no change of it."""
    if file is not None:
        applied = applied_to_file(remedy, number, file)
        return None if applied.number is None else Change(request.command, applied)
    return next(_changes(request, remedy, number), None)


def _changes(request: WatchRequest, remedy: Remedy, number: int) -> Iterator[Change]:
    command = request.command
    typed = None
    with suppress(OomDoctorError, OSError, ValueError):  # it starts no training that can be read
        typed = applied_to_command(remedy, number, command)
    started = command_of(command)
    # An option overrides what a file says.
    if typed and started and any(line.name in started.options for line in typed[0].lines):
        yield Change(typed[1], typed[0])
    for name in files_in(command):
        with suppress(OomDoctorError):
            applied = applied_to_file(remedy, number, name)
            if applied.number is not None:
                yield Change(command, applied)
    if typed is not None:
        yield Change(typed[1], typed[0])
    if settings := trainer_settings(remedy):
        yield Change(command, settings=settings)


@contextmanager
def changed(request: WatchRequest, change: Change) -> Iterator[WatchRequest]:
    """The request with the change. A changed file is a copy, in a folder that goes at the end.

    The folder has a link to each neighbor of the file, so that a script can import them.
    """
    request = replace(
        request, cure=False, keeps_case=False, command=change.command, changes=change.settings
    )
    applied = change.applied
    if applied is None or not Path(applied.file).is_file():
        yield request
        return
    file = Path(applied.file)
    with tempfile.TemporaryDirectory(prefix="oomdoctor-cure-") as folder:
        for neighbor in file.absolute().parent.iterdir():
            if neighbor.name != file.name:
                Path(folder, neighbor.name).symlink_to(neighbor)
        copy = Path(folder, file.name)
        copy.write_text(changed_text(applied, read_text(file, "--cure")), encoding="utf-8")
        shutil.copymode(file, copy)
        yield replace(request, command=tuple(_renamed(change.command, file, copy)))


def _renamed(command: Sequence[str], file: Path, copy: Path) -> Iterator[str]:
    """The words of a command, which names the copy instead of the file."""
    for word in command:
        head, equals, name = word.rpartition("=")
        named = bool(name) and Path(name).resolve() == file.resolve()
        yield f"{head}{equals}{copy}" if named else word


Again = Callable[[Remedy, Change], tuple[Report, str | None]]


@dataclass(frozen=True, slots=True)
class Cured:
    """The diagnosis with what its remedies were shown to do, and the one that was shown to fit.

    Without one that fits, `applied` is the last that was tried.
    """

    diagnosis: Diagnosis
    applied: AppliedRemedy | None


def cured(
    report: Report, told: Diagnosis, change: Callable[[Remedy, int], Change | None], again: Again
) -> Cured:
    """Tries the remedies of a training that ran past its card's memory until one fits.

    `change` puts a remedy into the training, and `again` runs it: the report, and why it failed.
    """
    remedies: list[Remedy] = []
    proven: AppliedRemedy | None = None
    last: AppliedRemedy | None = None
    tried = 0
    for number, remedy in enumerate(told.remedies, 1):
        done = tried == _MOST_CURES or any(cure.confirmed == "run" for cure in remedies)
        planned = None if done else change(remedy, number)
        if planned is not None:
            tried += 1
            after, failed = again(remedy, planned)
            proof = _proof(report, planned, after, failed)
            remedy = _after(remedy, proof)
            if planned.applied is not None:
                last = replace(planned.applied, proof=proof)
                proven = last if proof.fits else proven
        remedies.append(remedy)
    remedies.sort(key=lambda cure: _ORDER.index(cure.confirmed) if cure.enough else len(_ORDER))
    return Cured(replace(told, remedies=tuple(remedies)), proven or last)


def check_named(command: Sequence[str], file: str) -> None:
    """Check that a command names the file, which a changed copy takes the place of.

    Raises:
        OomDoctorError: it does not (exit 2).
    """
    if tuple(_renamed(command, Path(file), Path("changed"))) == tuple(command):
        raise usage_error(
            "no_command",
            f"--verify: the command does not name {file}: {shlex.join(command)}",
            "type the command that trains with this file after --",
        )


def unproven(report: Report, said: str | None) -> Proof:
    """That a training does not run out on its card, so that no change of it can be proven.

    `said` is why it failed otherwise.
    """
    peak = _peak(report)
    reason = f"the training fails as it is: {said}"
    if report.status == "ok":
        reason = f"the training does not run out as it is: it needs {format_bytes(peak)}"
    return Proof(report.command_line, _card(report), peak, None, None, reason, report.versions)


def _proof(report: Report, change: Change, again: Report, failed: str | None) -> Proof:
    """What a run with a change shows, compared with the run without it."""
    before, after = _peak(report), _peak(again)
    fits: bool | None = again.status == "ok" and not is_past(again)
    reason = None
    if after is None or (again.status != "ok" and not is_past(again)):
        fits, reason = None, failed or f"the command ended with {again.exit_code_of_command}"
    elif again.unknown_sizes is not None and not again.unknown_sizes.is_sure:
        fits, reason = None, "memory depends on values that no kernel computed"
    return Proof(change.command, _card(again), before, after, fits, reason, again.versions)


def _card(report: Report) -> str:
    """The card of a run, as a sentence names it."""
    name = None if report.device is None else report.device.gpu_name
    return name or "a GPU of this size"


def _after(remedy: Remedy, proof: Proof) -> Remedy:
    """The remedy with what the run with it needed; as it was if that run shows nothing."""
    if proof.fits is None or proof.before_bytes is None or proof.peak_bytes is None:
        return remedy
    shown = with_peaks(remedy, proof.before_bytes, proof.peak_bytes, enough=proof.fits)
    return replace(shown, confirmed="run" if proof.fits else "no")


def is_past(report: Report) -> bool:
    """Whether a rank went on past the memory of its emulated GPU."""
    return any(rank.went_past for rank in report.ranks)


def _peak(report: Report) -> int | None:
    return max((rank.peak_device_bytes or 0 for rank in report.ranks), default=None)
