"""Writes the case of a run that ran out of memory: all that a colleague needs to look at it.

    case.json         the report
    report.txt        the same to read, in 100 columns
    output.log        what the command printed: the start, and as much of the end
    environment.json  settings of CUDA and torch, versions of libraries
    snapshot-*.pickle what torch knew when a request failed; `oomdoctor snapshot` reads it
    memory-*.jsonl    memory after each step

No value of a variable is written but those of `case_variables`, and secrets are taken out of every
file: tokens, passwords, keys. They are known by their value (from the environment, the files of
tokens and the command), by the name before them, and by the marks of well-known services.
"""

from __future__ import annotations

import json
import mmap
import netrc
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from oomdoctor.commands.run.rank_records import Process, failures
from oomdoctor.commands.run.seen_outside import Seen
from oomdoctor.records.codec import dumps
from oomdoctor.records.report.report import Report
from oomdoctor.redaction import HIDDEN, is_secret, text_without_secrets, without_secrets
from oomdoctor.system.environment import all_variables, case_variables, hf_token_file, home
from oomdoctor.system.store.cases import CASE, PAGE, new_case
from oomdoctor.system.store.record_files import writing

WIDTH = 100
Rendered = Callable[[Report], str]
"""Makes the page of a report."""
_PLAIN = re.compile(r"(?i)true|false|none|null|yes|no|\d{1,8}")
_LEAST = 6  # characters; shorter values are in every text


def write_case(report: Report, seen: Seen, given: Path | None, rendered: Rendered) -> Report:
    """Write the case of a report and return the report with its folder.

    `given` is where the user wants the case, and `rendered` makes the page.

    Raises:
        OomDoctorError: the folder cannot be written (exit 5).
    """
    secrets = known_secrets(report.command_line)
    case = new_case(report.command_line, given)
    named = shlex.quote(str(case) if given is not None else case.name)
    packed = f"oomdoctor show {named} --zip {shlex.quote(case.name)}.zip"
    looked_at = _timelines(case, seen)
    commands = (*report.next_commands, *looked_at, packed)
    report = replace(report, run_dir=str(case), next_commands=commands)
    with writing(case):
        for process in seen.processes:
            _take_files(process, seen.folder, case, secrets)
        _write(case / "output.log", secrets.out_of(seen.tail.text()))
        _write(case / "environment.json", _environment(seen.processes, secrets))
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


def _timelines(case: Path, seen: Seen) -> tuple[str, ...]:
    """The line that draws the first snapshot; none without one."""
    paths = [
        case / snapshot_name(process.rank, failed["device"])
        for process in seen.processes
        for failed in failures(process)
        if failed["snapshot"] and (seen.folder / failed["snapshot"]).exists()
    ]
    words = ["oomdoctor", "snapshot", *map(str, paths[:1]), "--html", "timeline.html"]
    return (shlex.join(words),) if paths else ()


def _take_files(process: Process, folder: Path, case: Path, secrets: Secrets) -> None:
    """Move the snapshots of a process, and its live log, without secrets."""
    taken = {
        folder / failed["snapshot"]: snapshot_name(process.rank, failed["device"])
        for failed in failures(process)
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
    document = {
        "variables": case_variables(),
        "versions": next((process.record.get("versions") for process in processes), None),
    }
    return json.dumps(secrets.out_of_document(document), indent=2)


def _write(path: Path, text: str) -> None:
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    path.chmod(0o600)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The values that are known to be secret, the longest first."""

    values: tuple[str, ...]

    def out_of(self, text: str) -> str:
        """The text without them."""
        for value in self.values:
            text = text.replace(value, HIDDEN)
        return text_without_secrets(text)

    def out_of_document(self, document: Any) -> Any:
        """A JSON document, with the same keys, without them in any of its texts.

        A list of texts is read as the words of a command too, where an option names what follows.
        """
        if isinstance(document, str):
            return self.out_of(document)
        if isinstance(document, Mapping):
            return {key: self.out_of_document(value) for key, value in document.items()}
        if isinstance(document, list):
            if document and all(isinstance(item, str) for item in document):
                document = list(without_secrets(document))
            return [self.out_of_document(item) for item in document]
        return document

    def blot_out(self, path: Path) -> None:
        """Overwrite them in a file, which keeps its length; for files that are not text.

        Raises:
            OSError: the file cannot be changed.
        """
        if not path.stat().st_size:
            return
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            for value in self.values:
                word = value.encode()
                at = content.find(word)
                while at >= 0:
                    content[at : at + len(word)] = b"x" * len(word)
                    at = content.find(word, at + len(word))


def known_secrets(command: Sequence[str] = ()) -> Secrets:
    """The secrets of this environment, and those that a command names."""
    words: set[str] = set()
    of_variables = (value for name, value in all_variables().items() if is_secret(name, value))
    for value in (*of_variables, *_of_files(), *_of_command(command)):
        parts = [value, *(line for line in value.splitlines() if len(line) >= 16)]  # a private key
        words |= {part.strip() for part in parts}
    plain = {word for word in words if len(word) >= _LEAST and not _PLAIN.fullmatch(word)}
    spelled = {json.dumps(word)[1:-1] for word in plain} | {quote(word, safe="") for word in plain}
    return Secrets(tuple(sorted(plain | spelled, key=len, reverse=True)))


def _of_files() -> Iterator[str]:
    """The saved tokens of Hugging Face, and the passwords of netrc, where W&B keeps its key."""
    with suppress(OSError, UnicodeDecodeError):
        yield hf_token_file().read_text(encoding="utf-8")
    with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
        hosts = netrc.netrc(os.fspath(home() / ".netrc")).hosts.values()
        yield from (password for _, _, password in hosts if password)


def _of_command(command: Sequence[str]) -> Iterator[str]:
    """The words, or the ends of words, that are hidden in a command."""
    for word, shown in zip(command, without_secrets(command), strict=True):
        if shown == HIDDEN:
            yield word
        elif shown.endswith(HIDDEN) and word.startswith(shown.removesuffix(HIDDEN)):
            yield word.removeprefix(shown.removesuffix(HIDDEN))
