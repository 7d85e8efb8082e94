"""Writes the case of a run that ran out of memory: all that a colleague needs to look at it.

    case.json         the report
    report.txt        the same to read, in 100 columns
    output.log        what the command printed: the start, and as much of the end
    environment.json  settings of CUDA and torch, versions of libraries
    snapshot-*.pickle what torch knew when a request failed; `oomdoctor snapshot` reads it
    memory-*.jsonl    memory after each step

No value of a variable is written but those of `case_variables`, and secrets are taken out of every
file.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from oomdoctor.records.codec import dumps
from oomdoctor.records.report import Report
from oomdoctor.runs.watched.running.streams import Tail
from oomdoctor.runs.watched.secrets import Secrets, known_secrets
from oomdoctor.runs.watched.seen.processes import Process
from oomdoctor.system.environment import case_variables
from oomdoctor.system.store.cases import CASE, PAGE, new_case
from oomdoctor.system.store.record_files import writing

WIDTH = 100


def write_case(
    report: Report,
    folder: Path,
    processes: Sequence[Process],
    tail: Tail,
    given: Path | None,
    rendered: Callable[[Report], str],
) -> Report:
    """Write the case of a report and return the report with its folder.

    `folder` is what the processes shared, `given` where the user wants the case, and `rendered`
    makes the page.

    Raises:
        OomDoctorError: the folder cannot be written (exit 5).
    """
    secrets = known_secrets(report.command_line)
    case = new_case(report.command_line, given)
    named = shlex.quote(str(case) if given is not None else case.name)
    packed = f"oomdoctor show {named} --zip {shlex.quote(case.name)}.zip"
    looked_at = _timelines(case, folder, processes)
    commands = (*report.next_commands, *looked_at, packed)
    report = replace(report, run_dir=str(case), next_commands=commands)
    with writing(case):
        for process in processes:
            _take_files(process, folder, case, secrets)
        _write(case / "output.log", secrets.out_of(tail.text()))
        _write(case / "environment.json", _environment(processes, secrets))
        _write(case / PAGE, secrets.out_of(rendered(report)))
        _write(case / CASE, document_of(report, secrets))
    return report


def document_of(report: Report, secrets: Secrets | None = None) -> str:
    """The report as JSON without secrets; `secrets` are those of its command, if known already."""
    secrets = known_secrets(report.command_line) if secrets is None else secrets
    return json.dumps(secrets.out_of_document(json.loads(dumps(report))), indent=2) + "\n"


def snapshot_name(rank: int, device: int) -> str:
    """The name of a snapshot in the case."""
    return f"snapshot-rank{rank}-gpu{device}.pickle"


def _timelines(case: Path, folder: Path, processes: Sequence[Process]) -> tuple[str, ...]:
    """The line that draws the first snapshot; none without one."""
    found = [
        case / snapshot_name(process.rank, failed["device"])
        for process in processes
        for failed in process.record["ooms"]
        if failed["snapshot"] and (folder / failed["snapshot"]).exists()
    ]
    words = ["oomdoctor", "snapshot", *map(str, found[:1]), "--html", "timeline.html"]
    return (shlex.join(words),) if found else ()


def _take_files(process: Process, folder: Path, case: Path, secrets: Secrets) -> None:
    """Move the snapshots of a process, and its live log, without secrets."""
    taken = {
        folder / failed["snapshot"]: snapshot_name(process.rank, failed["device"])
        for failed in process.record["ooms"]
        if failed["snapshot"]
    }
    log = process.record.get("live_log")
    for path, name in taken.items():
        if path.exists():
            secrets.blot_out(path)
            shutil.move(path, case / name)
            (case / name).chmod(0o600)
    if log:
        with suppress(OSError):
            text = Path(log).read_text(encoding="utf-8", errors="replace")
            _write(case / f"memory-rank{process.rank}.jsonl", secrets.out_of(text))


def _environment(processes: Sequence[Process], secrets: Secrets) -> str:
    found = {
        "variables": case_variables(),
        "versions": next((one.record.get("versions") for one in processes), None),
    }
    return json.dumps(secrets.out_of_document(found), indent=2)


def _write(path: Path, text: str) -> None:
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    path.chmod(0o600)
