"""From a history to a timeline: whole, and thinned."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from snapshots import Writer, training

from oomdoctor.records.job.measurement import BlockCategory
from oomdoctor.records.report.timeline import CATEGORIES, PHASES, Timeline, TimelineDevice
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import History, history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.timeline import timeline_of
from oomdoctor.units import MIB


def histories(writer: Writer, folder: Path) -> list[History]:
    snapshot = read_snapshot(writer.write(folder / "x.pickle"))
    return [history_of(snapshot, device) for device in snapshot.devices]


def failing() -> Writer:
    writer = training(4)
    writer.alloc("activations", 24 * MIB, "forward")
    writer.note("oom", 5 * MIB, 64 * MIB, "forward")
    writer.free("activations")
    return writer


def anything(seed: int) -> Writer:
    """Blocks of all sizes that come and go."""
    writer, luck = Writer(), random.Random(seed)
    for number in range(300):
        stack = luck.choice(["load", "forward", "loss", "backward", "optimizer", "kept"])
        writer.alloc(
            f"{number}", luck.choice([700, 3 * MIB, 40 * MIB]) + luck.randrange(512), stack
        )
        while writer.blocks and luck.random() < 0.45:
            writer.free(luck.choice(list(writer.blocks)))
    return writer


def totals(device: TimelineDevice) -> list[int]:
    """What is allocated at each moment, from its blocks and the rest."""
    sums = [0] * len(device.event)
    for born, died, size in zip(
        device.blocks.born, device.blocks.died, device.blocks.size, strict=True
    ):
        for moment in range(born, died):
            sums[moment] += size
    for rest in device.rest.values():
        sums = [one + more for one, more in zip(sums, rest, strict=True)]
    return sums


@pytest.mark.parametrize("most", [(10**6, 10**6), (40, 10**6), (10**6, 12), (40, 12)])
@pytest.mark.parametrize("make", [failing, lambda: anything(1), lambda: anything(2)])
def test_blocks_and_rest_add_up_however_thin(make, most: tuple[int, int], tmp_path: Path) -> None:
    (history,) = histories(make(), tmp_path)
    (device,) = timeline_of("x", [history], None, *most).devices
    truth = device_of(history)
    assert totals(device) == list(device.allocated)
    assert device.allocated[device.peak] == truth.peak_allocated_bytes == max(device.allocated)
    assert max(device.reserved) == truth.peak_reserved_bytes
    assert device.allocated[-1] == truth.allocated_bytes
    assert len(device.event) <= most[0] + 6 and len(device.blocks) <= most[1]
    assert list(device.event) == sorted(set(device.event)) and device.event[0] == 0
    everything = len(device.blocks) + device.small_blocks + device.unseen_blocks
    assert everything == len(history.lives.blocks)
    assert all(sum(rest) for rest in device.rest.values())
    assert (device.most_moments > len(device.event)) == (most[0] == 40)


def test_a_whole_history(tmp_path: Path) -> None:
    (history,) = histories(failing(), tmp_path)
    timeline = timeline_of("a.pickle", [history])
    (device,) = timeline.devices
    assert device.traced
    assert (device.small_blocks, device.unseen_blocks, device.rest) == (0, 0, {})
    assert len(device.steps) == 4 == device_of(history).steps
    (failure,) = device.failures
    assert failure.requested_bytes == 64 * MIB and failure.free_bytes == 5 * MIB
    assert device.limit_bytes == device.reserved[failure.moment] + 5 * MIB
    assert _own_line(timeline, failure.stack) == ("model.py", 33, "forward")
    logits = [
        block
        for block, category in enumerate(device.blocks.category)
        if CATEGORIES[category] == "logits"
    ]
    assert len(logits) == 4 and device.blocks.size[logits[0]] == 32 * MIB
    assert _own_line(timeline, device.blocks.stack[logits[0]]) == ("train.py", 21, "main")
    assert PHASES[device.phase[device.blocks.born[logits[0]]]] == "loss"
    assert device.at_us[0] == 0 and device.at_us[-1] == len(history.device.events) - 2
    columns = {
        field.name: len(getattr(device.blocks, field.name)) for field in fields(device.blocks)
    }
    assert set(columns.values()) == {len(device.blocks)}


def _own_line(timeline: Timeline, stack: int) -> tuple[str, int, str]:
    found = timeline.stacks[stack]
    place = timeline.frames[found.frames[found.where]]
    return place.file, place.line, place.function


def test_times_of_a_simulation_are_left_out(tmp_path: Path) -> None:
    timeline = timeline_of("x", histories(failing(), tmp_path), "oomdoctor plan: simulated")
    assert timeline.written_by == "oomdoctor plan: simulated"
    assert not len(timeline.devices[0].at_us) and len(timeline.devices[0].event)


def test_without_events_there_is_one_moment(tmp_path: Path) -> None:
    writer = training()
    writer.events.clear()
    (history,) = histories(writer, tmp_path)
    (device,) = timeline_of("x", [history]).devices
    assert list(device.event) == [0] and device.peak == 0 and not len(device.at_us)
    assert totals(device) == list(device.allocated) == [device_of(history).allocated_bytes]
    assert not device.traced and device.truncated and set(device.blocks.before) == {1}


def test_every_category_has_a_place() -> None:
    assert sorted(CATEGORIES) == sorted(get_args(BlockCategory))
