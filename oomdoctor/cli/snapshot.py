"""`oomdoctor snapshot`: what held the memory in a snapshot of PyTorch, and which line made it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.snapshotting import SnapshotOptions
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.report import publish_report
from oomdoctor.errors import ExitCode, usage_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oomdoctor.snapshot.history import History
    from oomdoctor.snapshot.reading.snapshot import Snapshot

EPILOG = """\b
Examples:
  oomdoctor snapshot memory_snapshot.pickle
  oomdoctor snapshot memory_snapshot.pickle --json
  oomdoctor snapshot before.pickle after.pickle
Next: `oomdoctor explain trace.txt` reads the error that the run printed.
"""
_LARGE = 64 * 1024**2  # bytes; reading more takes a noticeable time


@flatten
def snapshot(options: SnapshotOptions) -> None:
    """Show what held the memory in a memory snapshot.

    The page lists memory at the peak by category and by line of code. It needs no GPU and no torch,
    and nothing in the file is run. Write a snapshot with
    torch.cuda.memory._record_memory_history() at the start of the script and
    torch.cuda.memory._dump_snapshot("memory_snapshot.pickle") at its end, or where it runs out.
    """
    from oomdoctor.cli.requests.answer import chosen_format
    from oomdoctor.explain.failed_request import diagnosis_of
    from oomdoctor.records.report import bare_report
    from oomdoctor.snapshot.answer import device_of
    from oomdoctor.snapshot.difference import difference_of

    clock, started = time.monotonic(), datetime.now(UTC)
    chosen = chosen_format("snapshot", options.answer)
    files = options.files or []
    if not files:
        raise usage_error("no_file", "no snapshot was given", "oomdoctor snapshot FILE")
    if len(files) > 2:
        message = f"{len(files)} snapshots were given"
        raise usage_error("bad_option", message, "give one, or two to compare")
    snapshots = [_read(file, quiet=options.quiet) for file in files]
    *earlier, found = map(_histories, snapshots)
    devices = tuple(device_of(history) for history in found.values())
    name = str(files[-1])
    failed = tuple(diagnosis_of(name, d.index, d.oom) for d in devices if d.oom is not None)
    differences = tuple(
        difference_of(before.get(index), found[index])
        for before in earlier
        for index in sorted(found)
    )
    report = replace(
        bare_report("snapshot", "ok", ExitCode.OK, started, time.monotonic() - clock),
        diagnoses=failed,
        source=name,
        settings=snapshots[-1].plain_settings(),
        devices=devices,
        differences=differences,
        causes=failed[0].causes if failed else (),
        remedies=failed[0].remedies if failed else (),
    )
    publish_report(report, chosen, verbose=options.verbose, file=options.answer.output_file)


def _read(file: Path, *, quiet: bool) -> Snapshot:
    from oomdoctor.snapshot.reading.file import read_snapshot

    is_large = file.is_file() and file.stat().st_size > _LARGE
    return read_snapshot(file, _say_tenths(file.name) if is_large and not quiet else None)


def _histories(snapshot: Snapshot) -> dict[int, History]:
    """The devices of a snapshot by their index."""
    from oomdoctor.snapshot.history import history_of

    return {device.index: history_of(snapshot, device) for device in snapshot.devices}


def _say_tenths(name: str) -> Callable[[float], None]:
    """Says how much was read, a line for each tenth."""
    told = 0

    def say(share: float) -> None:
        nonlocal told
        if share * 10 >= told + 1:
            told = int(share * 10)
            output.say_progress(f"{name}: {told * 10}% read")

    return say
