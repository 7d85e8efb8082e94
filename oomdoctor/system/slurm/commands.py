"""Runs a command of Slurm. A failure is an answer too; nothing is changed, no shell is used."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.system.slurm.records import FIELDS, OUTPUT_FIELDS

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
            os.killpg(process.pid, signal.SIGKILL)
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
