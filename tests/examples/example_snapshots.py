"""Reports of `snapshot` on hand-made snapshots."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from example_reports import REPORTS
from snapshots import Writer, large_blocks, training

from oomdoctor.explain.diagnose import diagnosis_of
from oomdoctor.explain.evidence import evidence_of
from oomdoctor.records.report.report import Report
from oomdoctor.snapshot.changes import Room, with_replays
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.units import MIB

ROOMS = (Room("NVIDIA Tiny", 80 * MIB), Room("NVIDIA Small", 112 * MIB), Room("128 MiB", 128 * MIB))


def grows() -> Report:
    """A training that keeps 3 MiB in each step."""
    return report_of(training(12, leak=3 * MIB))


def ran_out() -> Report:
    """A training whose last request failed, after memory was given back."""
    writer = training()
    writer.give_back("forward")
    writer.note("oom", 5 * MIB, 64 * MIB, "forward")
    return report_of(writer)


def replayed() -> Report:
    """A training that ran out of memory, and whether other GPUs would have been enough."""
    writer = large_blocks()
    writer.alloc("output", 48 * MIB, "forward")
    writer.give_back("forward")
    writer.note("oom", 4 * MIB, 32 * MIB, "forward")
    return report_of(writer, *ROOMS)


def report_of(writer: Writer, *asked: Room) -> Report:
    """The report that `snapshot` makes of it."""
    from dataclasses import replace

    with tempfile.TemporaryDirectory() as folder:
        found = read_snapshot(writer.write(Path(folder) / "x.pickle"))
    histories = [history_of(found, device) for device in found.devices]
    devices = tuple(with_replays(one, device_of(one), asked, lambda: ROOMS) for one in histories)
    name = "memory_snapshot.pickle"
    failed = tuple(map(diagnosis_of, evidence_of(name, devices)))
    return replace(
        REPORTS["error"](),
        command="snapshot",
        status="ok",
        exit_code=0,
        errors=(),
        source=name,
        devices=devices,
        diagnoses=failed,
        causes=failed[0].causes if failed else (),
        remedies=failed[0].remedies if failed else (),
    )


SNAPSHOTS: dict[str, Callable[[], Report]] = {
    "snapshot": grows,
    "snapshot-oom": ran_out,
    "snapshot-fits": replayed,
}
