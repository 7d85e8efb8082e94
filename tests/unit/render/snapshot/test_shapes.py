"""The areas of a picture: they add up to what was allocated, and the picture can be drawn."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from snapshots import Writer, training

from oomdoctor.records.report.timeline import CATEGORIES, Timeline
from oomdoctor.render.charts import WIDTHS
from oomdoctor.render.snapshot.png import Area, areas, columns_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.timeline import timeline_of
from oomdoctor.units import MIB


def timeline(writer: Writer, folder: Path, source: str = "x", **limits: int) -> Timeline:
    snapshot = read_snapshot(writer.write(folder / "x.pickle"))
    return timeline_of(source, [history_of(snapshot, one) for one in snapshot.devices], **limits)


def height(area: Area) -> float:
    """How high an area is at its left end."""
    return area.outline[0][1] - area.outline[-1][1]


@pytest.mark.parametrize("limits", [{}, {"most_moments": 60, "most_blocks": 20}])
def test_bands_add_up_to_what_was_allocated(tmp_path: Path, limits: dict[str, int]) -> None:
    (device,) = timeline(training(20, leak=3 * MIB), tmp_path, **limits).devices
    columns = columns_of(device, 30)
    assert len(columns.moments) <= 31 and device.peak in columns.moments
    assert max(columns.reserved) == max(device.reserved)
    bands = [area for area in areas(device, columns, 10**12) if area.block is None]
    assert [area.category for area in bands] == sorted(area.category for area in bands)
    top = max(y for area in bands for _, y in area.outline)
    assert top == max(device.allocated)
    assert {CATEGORIES[area.category] for area in bands} >= {"weights", "activations", "logits"}


def test_blocks_have_their_size_and_the_small_ones_are_left_out(tmp_path: Path) -> None:
    (device,) = timeline(training(2), tmp_path).devices
    drawn = areas(device, columns_of(device, 10**6), 20 * MIB)
    blocks = [area for area in drawn if area.block is not None]
    assert {device.blocks.size[area.block] for area in blocks} == {24 * MIB, 32 * MIB}
    for area in blocks:
        assert height(area) == device.blocks.size[area.block]


@pytest.mark.slow
def test_a_picture_of_every_kind(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from oomdoctor.render.snapshot.png import png

    failing = training(3)
    failing.note("oom", 5 * MIB, 64 * MIB, "forward")
    silent = training(1)
    silent.events.clear()
    for writer in (training(70), failing, silent):
        data = png(timeline(writer, tmp_path, source="a $ b_{ $\x07.pickle"))
        assert data.startswith(b"\x89PNG")
        size = struct.unpack(">II", data[16:24])
        assert size == (2 * WIDTHS["wide"], 1000)  # as wide as the charts of a run
