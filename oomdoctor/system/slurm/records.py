"""Asks scontrol and sacct, parses what they print into records, and records into lines of a log.

A failure of a command is an answer too; nothing is changed, no shell is used. The formats are those
of Slurm 17.11 and later.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from signal import SIGKILL

from oomdoctor.units import GIB, KIB, MIB

# https://slurm.schedmd.com/sacct.html. OUTPUT_FIELDS, with patterns expanded, exist since 24.05.
FIELDS = (
    "JobID", "User", "State", "ExitCode", "MaxRSS", "ReqMem", "NNodes", "AllocCPUS", "NodeList",
    "Elapsed", "Timelimit", "WorkDir",
)  # fmt: skip
OUTPUT_FIELDS = ("StdOut", "StdErr")
_UNITS = {"": MIB, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([KMGT]?)([nc]?)", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_NOTHING = ("", "(null)", "None", "None assigned", "Unknown", "N/A")
# States that explain the end of a job, with the message that Slurm writes to the log for each.
_ENDINGS = {
    "TIMEOUT": "CANCELLED DUE TO TIME LIMIT",
    "DEADLINE": "CANCELLED DUE TO TIME LIMIT",
    "PREEMPTED": "CANCELLED DUE TO PREEMPTION",
    "OUT_OF_MEMORY": "",
    "CANCELLED": "",
    "NODE_FAIL": "",
    "BOOT_FAIL": "",
}
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job, array task or step as one of the two commands reports it; None for what it omits.

    `teller` is that command. `state` is Slurm's own word, `exit_code` its `code:signal`.
    `peak_bytes` is MaxRSS: the largest sample of any task. Slurm samples every 30 s by default, so
    it misses a quick rise.
    """

    teller: str
    id: str
    state: str
    user: str | None = None
    exit_code: str | None = None
    peak_bytes: int | None = None
    requested_bytes: int | None = None
    nodes: str | None = None
    elapsed: str | None = None
    time_limit: str | None = None
    work_dir: str | None = None
    outputs: tuple[str, ...] = ()

    @property
    def job(self) -> str:
        """The job or array task that a step belongs to."""
        return self.id.partition(".")[0]

    @property
    def is_step(self) -> bool:
        return "." in self.id

    @property
    def alive(self) -> bool:
        """Whether the job is still waiting or running."""
        return self.state.startswith(_ALIVE)

    @property
    def tells_the_end(self) -> bool:
        """Whether this record alone says what ended the job, without the log."""
        return self.word in _ENDINGS or bool(self._kill)

    @property
    def word(self) -> str:
        """The state without what follows it: `CANCELLED` from `CANCELLED by 1000`."""
        return self.state.partition(" ")[0]

    @property
    def _kill(self) -> str:
        """Words for a SIGKILL. Empty for a canceled job, whose SIGKILL explains nothing."""
        code, _, signal = (self.exit_code or "").partition(":")
        if self.word != "FAILED":
            return ""
        if signal == str(SIGKILL.value):
            return "(terminated by signal 9)"
        return "(exit code 137)" if code == str(128 + SIGKILL) else ""

    def line(self) -> str:
        """The record as a line of a log, in words from which `explain` sees how the job ended."""
        parts = [
            f"{self.teller}: {self.id} State={self.state}",
            _ENDINGS.get(self.word, ""),
            f"ExitCode={self.exit_code}" if self.exit_code else "",
            self._kill,
            f"MaxRSS={self.peak_bytes // KIB}K" if self.peak_bytes else "",
            f"ReqMem={self.requested_bytes // KIB}K" if self.requested_bytes else "",
        ]
        return " ".join(part for part in parts if part)


def from_sacct(text: str) -> list[JobRecord]:
    """The rows of `sacct --parsable2 --noheader` with FIELDS, and OUTPUT_FIELDS or not."""
    rows = (line.split("|") for line in text.splitlines())
    named = (
        dict(zip((*FIELDS, *OUTPUT_FIELDS), cells, strict=False))
        for cells in rows
        if len(cells) in (len(FIELDS), len(FIELDS) + len(OUTPUT_FIELDS))
    )
    return [
        replace(
            _record("sacct", row["JobID"], row["State"], row),
            peak_bytes=_size(row["MaxRSS"]),
            requested_bytes=_size(row["ReqMem"], row["NNodes"], row["AllocCPUS"]),
        )
        for row in named
    ]


def from_scontrol(text: str) -> list[JobRecord]:
    """The jobs of `scontrol show job ID`: one, or each task of an array."""
    records = []
    for block in re.split(r"\n\s*\n", text):
        # A path may hold spaces and then fills its line; other values do not.
        row = dict(re.findall(r"^\s*(WorkDir|StdOut|StdErr)=(.*)$", block, re.MULTILINE))
        for name, value in re.findall(r"(?<!\S)(\w+)=(\S+)", block):
            row.setdefault(name, value)
        if "JobId" not in row:
            continue
        task = row.get("ArrayTaskId")
        name = f"{row.get('ArrayJobId')}_{task}" if task else row["JobId"]
        records.append(_record("scontrol", name, row.get("JobState", ""), row))
    return records


def _record(teller: str, name: str, state: str, row: Mapping[str, str]) -> JobRecord:
    """A record with what both commands tell; some names differ between sacct and scontrol."""
    fields = {key: value for key, value in row.items() if value not in _NOTHING}
    return JobRecord(
        teller=teller,
        id=name,
        state=state,
        user=fields.get("User", fields.get("UserId", "")).partition("(")[0] or None,
        exit_code=fields.get("ExitCode"),
        nodes=fields.get("NodeList"),
        elapsed=fields.get("Elapsed", fields.get("RunTime")),
        time_limit=fields.get("Timelimit", fields.get("TimeLimit")),
        work_dir=fields.get("WorkDir"),
        outputs=tuple(dict.fromkeys(fields[key] for key in OUTPUT_FIELDS if key in fields)),
    )


def _size(text: str, nodes: str = "", cpus: str = "") -> int | None:
    """Bytes in `67108864K` or `64G`; before Slurm 21.08 also `64Gn` (per node), `4Gc` (per CPU)."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    size = int(float(match[1]) * _UNITS[match[2]])
    count = {"n": nodes, "c": cpus}.get(match[3], "")
    return (size * int(count) if _COUNT.fullmatch(count) else size) or None


DEADLINE_S = 10.0
_KNOWS_NOTHING = "Invalid job id|accounting storage is disabled"
_TOO_NEW = "[Ii]nvalid field|unrecognized option"


@dataclass(frozen=True, slots=True)
class SlurmAnswer:
    """What a command printed; `fault` says in one sentence why it gave no answer.

    `absent`: it is not installed. `refused`: it ran and failed. `too_new`: this version of Slurm
    does not know a field or an option.
    """

    text: str = ""
    fault: str | None = None
    absent: bool = False
    refused: bool = False

    @property
    def too_new(self) -> bool:
        return self.refused and re.search(_TOO_NEW, self.fault or "") is not None


def ask(command: str, *arguments: str, deadline_s: float | None = None) -> SlurmAnswer:
    """Run a command of Slurm; by default it has 10 s."""
    limit = DEADLINE_S if deadline_s is None else deadline_s
    try:
        process = subprocess.Popen(
            [command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # sites wrap these commands in scripts: kill the whole group
        )
    except FileNotFoundError:
        return SlurmAnswer(fault=f"{command} is not installed", absent=True)
    except OSError as error:
        return SlurmAnswer(fault=f"cannot run {command}: {error.strerror}", absent=True)
    with process:
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as ended:
            os.killpg(process.pid, SIGKILL)
            if not isinstance(ended, subprocess.TimeoutExpired):
                raise
            return SlurmAnswer(fault=f"{command} did not answer within {limit:g} s", refused=True)
    if process.returncode == 0:
        return SlurmAnswer(out)
    said = " ".join(err.split()) or f"exit code {process.returncode}"
    refused = re.search(_KNOWS_NOTHING, said) is None
    return SlurmAnswer(out, f"{command}: {said.removeprefix(f'{command}: ')}", refused=refused)


def ask_sacct(
    further: Sequence[tuple[str, ...]], *arguments: str, deadline_s: float | None = None
) -> tuple[SlurmAnswer, tuple[str, ...]]:
    """sacct's rows with FIELDS and the first further fields that this version of Slurm knows.

    All runs of a requeued job are listed, not only the last.
    """
    answer, fields = SlurmAnswer(), tuple[str, ...]()
    for fields in further:
        expanded = ("--expand-patterns",) if set(OUTPUT_FIELDS) & set(fields) else ()
        columns = ",".join((*FIELDS, *fields))
        fixed = ("--duplicates", "--parsable2", "--noheader", *expanded, "-o", columns)
        answer = ask("sacct", *arguments, *fixed, deadline_s=deadline_s)
        if not answer.too_new:
            break
    return answer, fields
