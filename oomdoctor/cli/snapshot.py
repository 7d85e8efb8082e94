"""`oomdoctor snapshot`: what held the memory in a snapshot of PyTorch, and which line made it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from oomdoctor import __version__
from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.snapshotting import SnapshotOptions
from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.report import publish_report
from oomdoctor.errors import ExitCode

if TYPE_CHECKING:
    from oomdoctor.records.diagnosis import Diagnosis
    from oomdoctor.records.report import Report
    from oomdoctor.records.snapshot import SnapshotDevice
    from oomdoctor.snapshot.reading.snapshot import Snapshot

EPILOG = """\b
Examples:
  oomdoctor snapshot memory_snapshot.pickle
  oomdoctor snapshot memory_snapshot.pickle --json
Next: `oomdoctor explain trace.txt` reads the error that the run printed.
"""
_LARGE = 64 * 1024**2  # bytes; reading more takes a noticeable time


@flatten
def snapshot(options: SnapshotOptions) -> None:
    """Show what held the memory in a memory snapshot.

    For the peak it names the category and the line of code of each block. It needs no GPU and no
    torch, and nothing in the file is run. Write a snapshot with
    torch.cuda.memory._record_memory_history() at the start of the script and
    torch.cuda.memory._dump_snapshot("memory_snapshot.pickle") at its end, or where it runs out.
    """
    from oomdoctor.cli.requests.answer import chosen_format
    from oomdoctor.explain.failed_request import diagnosis_of
    from oomdoctor.snapshot.answer import device_of
    from oomdoctor.snapshot.reading.file import read_snapshot

    clock, started = time.monotonic(), datetime.now(UTC)
    chosen = chosen_format("snapshot", options.answer)
    is_large = options.file.is_file() and options.file.stat().st_size > _LARGE
    progress = _say_share if is_large and not options.quiet else None
    found = read_snapshot(options.file, progress)
    devices = tuple(device_of(found, device) for device in found.devices)
    name = str(options.file)
    failed = tuple(
        diagnosis_of(name, device.index, device.oom) for device in devices if device.oom is not None
    )
    report = _report(name, found, devices, failed, started, time.monotonic() - clock)
    publish_report(report, chosen, verbose=options.verbose, file=options.answer.output_file)


def _say_share(share: float) -> None:
    output.say_progress(f"read {share:.0%}")


def _report(
    name: str,
    found: Snapshot,
    devices: tuple[SnapshotDevice, ...],
    failed: tuple[Diagnosis, ...],
    started: datetime,
    elapsed_s: float,
) -> Report:
    from oomdoctor.records.report import SCHEMA, Picks, Report, Tool

    return Report(
        schema=SCHEMA,
        command="snapshot",
        status="ok",
        exit_code=int(ExitCode.OK),
        tool=Tool("oomdoctor", __version__),
        started_at=started.isoformat(timespec="seconds"),
        elapsed_s=round(elapsed_s, 3),
        run_dir=None,
        request=None,
        machine=None,
        model=None,
        budget=None,
        results=(),
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        next_commands=(),
        warnings=(),
        errors=(),
        diagnoses=failed,
        source=name,
        settings={k: v for k, v in found.settings.items() if isinstance(v, str | int | float)},
        devices=devices,
        causes=failed[0].causes if failed else (),
        remedies=failed[0].remedies if failed else (),
    )
