"""Runs the checks of a file and says which need more memory than they may."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.commands.check.judging import accepted_peak, compared, judged, with_peaks
from oomdoctor.commands.check.running import Ran, peak_of, run_all
from oomdoctor.commands.devices.emulated import emulated_gpus
from oomdoctor.commands.run.interpreter import chosen_python, found_command, path_of
from oomdoctor.errors import ExitCode, OomDoctorError, machine_error, usage_error
from oomdoctor.records.report.check import (
    BASELINE_SCHEMA,
    CHECK_WORDS,
    Baseline,
    CheckAnswer,
    CheckPeak,
)
from oomdoctor.system.check_file import Check, CheckFile, read_checks
from oomdoctor.system.store.record_files import read_record, write_record
from oomdoctor.units import format_bytes, format_seconds

_ANEW = (
    "take it from version control again, or remove it: oomdoctor check --update writes a new one"
)


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What `check` is asked.

    `names` are the checks to run; none: all. `against` is a git revision to run as the baseline.
    With `update`, today's peaks become the baseline.
    """

    file: Path
    names: tuple[str, ...]
    against: str | None
    update: bool
    jobs: int


def run_check(request: CheckRequest, say: Callable[[str], None]) -> CheckAnswer:
    """Run the checks; `say` gets a line as each ends.

    Raises:
        OomDoctorError: the file or the baseline is wrong, or there is no such check or revision
            (exit 2); or no check can run on this machine (exit 5).
    """
    file = read_checks(request.file, emulated_gpus)
    checks = _chosen(file, request.names)
    folder = file.path.absolute().parent
    _raise_if_missing(file.path, folder, checks)
    baseline = read_baseline(file.baseline)
    with _checkout(folder, request.against) if request.against else nullcontext(None) as other:
        earlier, checks_there = None, _titles(other, file)
        if other is not None:
            say(f"running {len(checks)} at {request.against}")
            earlier = run_all(checks, other, request.jobs, _said(say, request.against))
            _raise_if_unfit(earlier)
        rans = run_all(checks, folder, request.jobs, _said(say, None))
        _raise_if_unfit(rans)
        results = []
        for number, (check, ran) in enumerate(zip(checks, rans, strict=True)):
            if earlier is None or other is None or request.against is None:
                result = judged(check, ran, folder, _accepted(baseline, check, ran, folder))
            else:
                before = judged(check, earlier[number], other, None)
                is_new = (check.name, check.gpu) not in checks_there
                result = compared(check, ran, folder, before, request.against, is_new=is_new)
            results.append(result)
    if request.update:
        write_record(file.baseline, with_peaks(baseline, results, file.checks))
    return CheckAnswer(
        file=str(file.path),
        baseline_file=str(file.baseline),
        against=request.against,
        updated=request.update,
        results=tuple(results),
    )


def _chosen(file: CheckFile, names: Sequence[str]) -> tuple[Check, ...]:
    names_there = dict.fromkeys(check.name for check in file.checks)
    for name in names:
        if name not in names_there:
            listed = ", ".join(names_there)
            raise usage_error(
                "no_such_check", f"{file.path} has no check {name}", f"it has {listed}"
            )
    return tuple(check for check in file.checks if not names or check.name in names)


def _raise_if_missing(file: Path, folder: Path, checks: Sequence[Check]) -> None:
    """Refuse checks whose programs are not there, before others run for minutes."""
    faults: dict[str, None] = {}
    for check in checks:
        options = dict(zip(check.options[::2], check.options[1::2], strict=True))
        try:
            path = check.environment.get("PATH")
            if (given := options.get("--python")) is not None:
                path = path_of(chosen_python(given, check.command), path)
            word = check.command[0]
            found_command(str(folder / word) if os.sep in word else word, path)
        except OomDoctorError as error:
            faults[f"{check.name}: {error.message}"] = None
    if faults:
        count = "an error" if len(faults) == 1 else f"{len(faults)} errors"
        raise usage_error(
            "bad_checks",
            "\n".join([f"{file} has {count}:", *faults]),
            "a command runs in the folder of the file, without a shell; check names and PATH",
        )


def read_baseline(path: Path) -> Baseline:
    """The accepted peaks of a file; none if there is no file.

    Raises:
        OomDoctorError: it is damaged or of another version (exit 2).
    """
    if not path.exists():
        return Baseline()
    try:
        baseline = read_record(Baseline, path.absolute())
    except OomDoctorError as error:
        raise usage_error("bad_baseline", error.message, _ANEW) from None
    if baseline.schema != BASELINE_SCHEMA:
        raise usage_error(
            "bad_baseline",
            f"{path} has the schema {baseline.schema}, and this version reads {BASELINE_SCHEMA}",
            _ANEW,
        )
    return baseline


def _titles(folder: Path | None, file: CheckFile) -> Collection[tuple[str, str]]:
    """The names and the cards of the checks that another revision has."""
    if folder is not None:
        with suppress(OomDoctorError):
            checks = read_checks(folder / file.path.name, emulated_gpus).checks
            return {(check.name, check.gpu) for check in checks}
    return ()


def _accepted(baseline: Baseline, check: Check, ran: Ran, folder: Path) -> CheckPeak | None:
    peak = None if ran.report is None else peak_of(ran.report, folder)
    return accepted_peak(baseline, check, {} if peak is None else peak.versions)


def _raise_if_unfit(rans: Sequence[Ran]) -> None:
    """Raise if no check could run, because of this machine."""
    unfit = [ran for ran in rans if ran.report is None and ran.exit_code == ExitCode.MACHINE_UNFIT]
    if rans and len(unfit) == len(rans):
        raise machine_error(
            "cannot_emulate",
            unfit[0].reason or "no check could run on this machine",
            "oomdoctor env says how to make a CUDA build; name it in the file, under [defaults]: "
            'python = "cuda/bin/python"',
        )


def _said(say: Callable[[str], None], revision: str | None) -> Callable[[Check, Ran], None]:
    at = "" if revision is None else f" at {revision}"

    def said(check: Check, ran: Ran) -> None:
        report = ran.report
        peaks = [] if report is None else [rank.peak_device_bytes or 0 for rank in report.ranks]
        what = f"peak {format_bytes(max(peaks))} on the device" if peaks else CHECK_WORDS["failed"]
        say(f"{check.name} on {check.gpu}{at}: {what} ({format_seconds(ran.elapsed_s)})")

    return said


@contextmanager
def _checkout(folder: Path, revision: str) -> Iterator[Path]:
    """The folder as it is in a git revision, in a worktree that is removed at the end.

    Raises:
        OomDoctorError: it is in no repository, or there is no such revision (exit 2).
    """
    inside = _git(folder, "rev-parse", "--show-prefix")
    with tempfile.TemporaryDirectory(prefix="oomdoctor-against-") as made:
        tree = Path(made, "tree")
        _git(folder, "worktree", "add", "--detach", "--quiet", str(tree), revision)
        try:
            yield tree / inside
        finally:
            _git(folder, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *words: str) -> str:
    try:
        ended = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        raise machine_error("no_git", "--against needs git, which is not installed") from None
    if ended.returncode:
        said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise usage_error("bad_revision", f"--against: git says: {said}")
    return ended.stdout.strip()
