"""A snapshot that oomdoctor writes is read back as what was played."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from oomdoctor.analysis.allocator.records import Mark
from oomdoctor.analysis.allocator.replay import replay_order
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.records.report.snapshot import SnapshotDevice
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.phases import own_frames
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.writing import Allocations, write_snapshot
from oomdoctor.units import MIB

# Block: its size in MiB, its category; 5 is freed before 6 is made.
BLOCKS = ((8, "weights"), (24, "activations"), (33, "logits"), (8, "gradients"), (8, "optimizer"),
          (24, "activations"), (33, "logits"))  # fmt: skip
EVENTS = (1, 2, 3, -3, -2, 4, 5, -4, 6, 7, -7, -6)
MARKS = (
    Mark(0, "load"),
    Mark(1, "forward"),
    Mark(3, "backward"),
    Mark(6, "optimizer"),
    Mark(8, "forward"),
    Mark(10, "backward"),
)


def allocations(*, expandable: bool = False, limit: int | None = None) -> Allocations:
    return Allocations(
        events=EVENTS,
        sizes=[size * MIB for size, _ in BLOCKS],
        marks=MARKS,
        frames=lambda block, phase: own_frames(
            f"layers.{block}", "aten::mm", phase, BLOCKS[block][1]
        ),
        settings=AllocatorSettings(expandable_segments=expandable),
        written_by="a test",
        limit_bytes=limit,
    )


def read_back(made: Allocations, path: Path) -> SnapshotDevice:
    file = path / "own.pickle"
    write_snapshot(made, file)
    snapshot = read_snapshot(file)
    (device,) = snapshot.devices
    return device_of(history_of(snapshot, device))


@pytest.mark.parametrize("expandable", [False, True])
def test_peaks_are_those_of_the_replay(tmp_path: Path, *, expandable: bool) -> None:
    made = allocations(expandable=expandable)
    played = replay_order(made.events, made.sizes, settings=made.settings)
    found = read_back(made, tmp_path)
    assert found.peak_allocated_bytes == played.peak_allocated_bytes
    assert found.peak_reserved_bytes == played.peak_reserved_bytes
    assert found.steps == 1 and not found.truncated and found.oom is None


def test_marks_of_the_optimizer_in_a_row_are_one_step(tmp_path: Path) -> None:
    split = [*MARKS[:4], Mark(7, "optimizer"), *MARKS[4:]]
    assert read_back(replace(allocations(), marks=split), tmp_path).steps == 1


def test_categories_and_modules_are_those_that_were_written(tmp_path: Path) -> None:
    peak = read_back(allocations(), tmp_path).peak
    assert peak is not None and peak.phase == "forward"
    held = {block.category: block for block in peak.blocks}
    assert peak.categories.weights_bytes == 8 * MIB
    assert peak.categories.optimizer_bytes == 8 * MIB
    assert peak.categories.logits_bytes >= 33 * MIB
    place = held["logits"].library_where
    assert place is not None and place.module == "layers.6: mm"
    assert {block.confidence for block in peak.blocks} == {"high"}


def test_a_request_that_cannot_be_met_is_the_last_event(tmp_path: Path) -> None:
    found = read_back(allocations(limit=80 * MIB), tmp_path)
    assert found.oom is not None
    assert found.oom.requested_bytes in (33 * MIB, 24 * MIB)
    assert found.oom.where is not None and found.oom.where.module is not None
    assert found.oom.reserved_bytes + found.oom.free_bytes == 80 * MIB


def test_nothing_but_plain_data_is_written(tmp_path: Path) -> None:
    file = tmp_path / "own.pickle"
    write_snapshot(allocations(), file)
    opcodes = {name for name, *_ in _opcodes(file.read_bytes())}
    assert not opcodes & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ"}
    keys = set(pickle.loads(file.read_bytes()))
    assert keys >= {"segments", "device_traces", "allocator_settings", "external_annotations"}


def _opcodes(data: bytes) -> list[tuple[str, object]]:
    import pickletools

    return [(code.name, argument) for code, argument, _ in pickletools.genops(data)]
