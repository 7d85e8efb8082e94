"""The list of runs on disk, as `runs`, `runs --prune` and `show --list` print it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from oomdoctor.records.codec import to_json
from oomdoctor.records.report.earlier_runs import StoredRun
from oomdoctor.render.blocks import Block, Column, Note, Section, table_of
from oomdoctor.render.formats.csv_rows import CsvColumn, record_rows
from oomdoctor.render.lists import Listing
from oomdoctor.render.words import card_name, counted
from oomdoctor.units import DASH, format_bytes

_CSV: tuple[CsvColumn, ...] = tuple(
    (field.name, field.name)
    if field.name != "command_line"
    else (field.name, lambda run: " ".join(run.command_line))
    for field in fields(StoredRun)
)
_SCRIPTS = (".py", ".ipynb", ".sh")


def run_list(
    command: str,
    runs: Sequence[StoredRun],
    note: str = "",
    content: Mapping[str, Any] | None = None,
) -> Listing:
    """The runs, a line each, latest first; `note` says what was left out or what happened."""
    rows = tuple(map(tuple, record_rows(_CSV, runs)))
    page = Section("", _blocks(runs, note))
    return Listing(command, content or {"runs": [to_json(run) for run in runs]}, (page,), rows)


def listed_as_before(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """The runs and the cases apart, with the keys that `show --list --json` always had."""
    listed = [to_json(run) for run in runs if run.kind == "run"]
    cases = [
        {
            "name": case.name,
            "path": case.path,
            "started_at": case.started_at,
            "command": " ".join(case.command_line) if case.problem is None else None,
            "problem": case.problem,
            "size_bytes": case.size_bytes,
        }
        for case in runs
        if case.kind == "case"
    ]
    return {"runs": listed, "cases": cases}


def _blocks(runs: Sequence[StoredRun], note: str) -> tuple[Block, ...]:
    table = table_of(
        runs,
        (
            (Column("name"), lambda run: run.name),
            (Column("when", 3, detail="started {}"), lambda run: _minute(run.started_at)),
            (Column("command", 2), _command),
            (Column("model", 2, detail="model {}"), lambda run: run.model or DASH),
            (Column("device", 4, detail="on {}"), lambda run: card_name(run.device or DASH)),
            (Column("size", 1, right=True), lambda run: format_bytes(run.size_bytes)),
            (Column("outcome", 1, wraps=True), lambda run: run.outcome),
        ),
    )
    blocks: list[Block] = [table] if runs else []
    if runs and len(runs) > 1:
        size = format_bytes(sum(run.size_bytes for run in runs))
        blocks.append(Note(f"{counted(len(runs), 'run')}, {size}."))
    if note:
        blocks.append(Note(note, "normal"))
    return tuple(blocks) or (Note("nothing to list"),)


def _command(run: StoredRun) -> str:
    """The verb; for a case with the script that it watched."""
    scripts = [word for word in run.command_line if word.endswith(_SCRIPTS)]
    script = PurePath(scripts[0]).name if scripts else ""
    return f"{run.command or DASH} {script}".rstrip()


def _minute(time: str | None) -> str:
    """`2026-01-02 03:04 UTC` of an ISO time in UTC; other times stay as they are."""
    if time is None or not time.endswith("+00:00"):
        return time or DASH
    return f"{time[:10]} {time[11:16]} UTC"
