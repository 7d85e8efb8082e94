"""What would have been, of hand-made histories."""

from __future__ import annotations

from pathlib import Path

import pytest
from growth import grows_no_faster
from snapshots import Writer, large_blocks, training

from oomdoctor.records.report.snapshot import SnapshotChange, SnapshotDevice
from oomdoctor.snapshot import replays as runs_module
from oomdoctor.snapshot.changes import Room, half_sizes, with_replays
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import History, history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.replays import Runs, order_of
from oomdoctor.units import MIB

ROOMS = (Room("small", 60 * MIB), Room("middle", 96 * MIB), Room("large", 1024 * MIB))


def history(writer: Writer, folder: Path) -> History:
    found = read_snapshot(writer.write(folder / "snapshot.pickle"))
    return history_of(found, found.devices[0])


def answer(writer: Writer, folder: Path, *asked: Room) -> SnapshotDevice:
    found = history(writer, folder)
    return with_replays(found, device_of(found), asked, lambda: ROOMS)


def failing(free: int = 4 * MIB) -> Writer:
    writer = large_blocks()
    writer.alloc("kept", 40 * MIB, "kept")
    writer.give_back("forward")
    writer.note("oom", free, 64 * MIB, "forward")
    return writer


def changes(device: SnapshotDevice) -> dict[str, SnapshotChange]:
    assert device.oom is not None
    return {change.kind: change for change in device.oom.changes}


def test_it_fits_where_there_is_room(tmp_path: Path) -> None:
    found = answer(large_blocks(), tmp_path, *ROOMS)
    small, middle, large = found.fits
    assert [fit.gpu for fit in found.fits] == ["small", "middle", "large"]
    assert small.as_it_was is not None and not small.as_it_was.fits
    assert small.as_it_was.needed_bytes == 88 * MIB == found.peak_reserved_bytes
    # 16 + 24 + 16 are in use when 32 are asked for.
    assert small.as_it_was.short_bytes == 28 * MIB
    for fit in (middle, large):
        assert fit.as_it_was is not None and fit.as_it_was.fits
        assert fit.as_it_was.peak_reserved_bytes == 88 * MIB and fit.as_it_was.retries == 0


def test_half_of_the_micro_batch_halves_what_the_layers_make(tmp_path: Path) -> None:
    found = answer(large_blocks(), tmp_path, Room("card", 80 * MIB), Room("tight", 66 * MIB))
    card, tight = found.fits
    assert card.with_half_micro_batch is not None and card.with_half_micro_batch.fits
    assert card.with_half_micro_batch.needed_bytes == 76 * MIB
    assert card.half_confidence == "medium"
    assert tight.with_half_micro_batch is not None and not tight.with_half_micro_batch.fits


def test_a_block_of_the_size_of_a_weight_is_not_sure_to_shrink(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("weights", 48 * MIB, "load")
    writer.alloc("copy", 24 * MIB, "forward")
    writer.alloc("activations", 60 * MIB, "forward")
    writer.free("copy", "activations")
    found = history(writer, tmp_path)
    halves = half_sizes(found, order_of(found))
    assert halves == ([48 * MIB, 24 * MIB, 30 * MIB], [48 * MIB, 12 * MIB, 30 * MIB])
    fits = answer(writer, tmp_path, Room("x", 96 * MIB), Room("y", 104 * MIB)).fits
    assert fits[0].with_half_micro_batch is None and fits[0].half_confidence is None
    assert fits[1].with_half_micro_batch is not None


def test_without_stacks_nothing_is_said_of_the_micro_batch(tmp_path: Path) -> None:
    writer = large_blocks()
    for event in writer.events:
        event["frames"] = []
    (fit,) = answer(writer, tmp_path, ROOMS[1]).fits
    assert fit.as_it_was is not None and fit.as_it_was.fits
    assert fit.with_half_micro_batch is None and fit.half_confidence is None


def test_what_would_have_let_a_request_pass(tmp_path: Path) -> None:
    found = answer(failing(), tmp_path)
    assert found.oom is not None and found.oom.changes_note is None
    by = changes(found)
    assert by["free"].bytes == 60 * MIB
    assert by["gpu"].gpu == "large"
    assert by["gpu"].bytes == 1024 * MIB - found.oom.reserved_bytes - 4 * MIB
    assert "growth" not in by
    assert "line" not in by  # none holds 60 MiB


def test_the_line_with_the_fewest_bytes_that_are_enough(tmp_path: Path) -> None:
    writer = large_blocks()
    for name, size in (("a", 20), ("b", 30), ("c", 50)):
        writer.alloc(name, size * MIB, {"a": "loss", "b": "embedding", "c": "forward"}[name])
    writer.give_back("forward")
    writer.note("oom", 40 * MIB, 64 * MIB, "forward")
    line = changes(answer(writer, tmp_path))["line"]
    assert line.bytes == 30 * MIB and line.category == "activations"
    assert line.where is not None and line.where.line == 20


def test_expandable_segments_may_be_enough(tmp_path: Path) -> None:
    writer = Writer()
    for name in ("a", "b", "c"):
        writer.alloc(name, 30 * MIB, "forward")
    for name in ("a", "b", "c"):
        writer.free(name)
        writer.alloc(f"{name} small", 16 * MIB, "load")  # holds its segment open
    writer.note("oom", 10 * MIB, 40 * MIB, "forward")
    by = changes(answer(writer, tmp_path))
    assert by["setting"].setting == "expandable_segments:True"


def test_a_leak_is_named(tmp_path: Path) -> None:
    writer = training(12, leak=12 * MIB)
    writer.give_back("forward")
    writer.note("oom", 2 * MIB, 64 * MIB, "forward")
    found = answer(writer, tmp_path)
    assert found.growth is not None
    by = changes(found)
    if found.oom is not None and found.oom.changes_note is None:
        assert by["growth"].where == found.growth.where
        assert by["growth"].bytes is not None and by["growth"].bytes >= 12 * 12 * MIB


def test_a_replay_that_disagrees_says_nothing(tmp_path: Path) -> None:
    writer = large_blocks()
    writer.segments[1 << 50] = (200 * MIB, 0)  # nothing says where it is from
    (fit,) = answer(writer, tmp_path, ROOMS[1]).fits
    assert fit.as_it_was is None and fit.with_half_micro_batch is None
    assert fit.note is not None and "began when memory was already in use" in fit.note


def test_a_failure_elsewhere_says_nothing(tmp_path: Path) -> None:
    found = answer(failing(free=80 * MIB), tmp_path)
    assert found.oom is not None and found.oom.changes == ()
    assert "does not run out of memory where" in (found.oom.changes_note or "")


def test_a_snapshot_without_history_says_so(tmp_path: Path) -> None:
    writer = large_blocks()
    writer.events.clear()
    (fit,) = answer(writer, tmp_path, ROOMS[0]).fits
    assert fit.note == "the snapshot has no history"


def test_a_long_trace_is_replayed_only_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = history(failing(), tmp_path)
    events = len(order_of(found).events)
    for times, some in ((2, False), (6, True), (100, True)):
        monkeypatch.setattr(runs_module, "_MOST_EVENTS", times * events)
        oom = with_replays(found, device_of(found), (), lambda: ROOMS).oom
        assert oom is not None and bool(oom.changes) == some
        assert (oom.changes_note is None) == (times == 100)


def test_an_emptied_cache_is_replayed(tmp_path: Path) -> None:
    writer = large_blocks()
    writer.give_back("kept")
    writer.alloc("x", 100 * MIB, "forward")
    found = history(writer, tmp_path)
    runs = Runs(found)
    assert len(runs.order.marks) == 1 and runs.note is None
    assert runs.needed() == (16 + 32 + 100) * MIB


@pytest.mark.slow
def test_the_work_is_linear(tmp_path: Path) -> None:
    found = {n: history(large_blocks(n), tmp_path) for n in (100, 400)}

    def work(steps: int) -> object:
        return Runs(found[steps]).needed()

    assert grows_no_faster(work, 100, 8)
