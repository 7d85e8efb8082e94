"""What a page holds: small, and the same as what went in."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode
from dataclasses import astuple, fields
from itertools import accumulate
from typing import Any

import pytest
from timelines import crowded

from oomdoctor.records.job.measurement import CATEGORY_WORDS
from oomdoctor.render.snapshot.timeline_page import packed


def unpacked(text: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    data = zlib.decompress(b64decode(text))
    (length,) = struct.unpack_from("<I", data)
    document = json.loads(data[4 : 4 + length])
    start = -(-(4 + length) // 8) * 8
    columns = {
        name: list(
            accumulate(map(int, struct.unpack_from(f"<{count}{kind}", data, start + offset)))
        )
        for name, (kind, offset, count) in document["columns"].items()
    }
    return document, columns


def test_every_column_comes_back() -> None:
    timeline = crowded(2000)
    (device,) = timeline.devices
    document, columns = unpacked(packed(timeline))
    for field in fields(device.blocks):
        assert columns[f"0.block.{field.name}"] == list(getattr(device.blocks, field.name))
    for name in ("event", "at_us", "allocated", "reserved", "phase"):
        assert columns[f"0.{name}"] == list(getattr(device, name))
    assert columns["0.rest.weights"] == list(device.rest["weights"])
    assert columns["0.step.first"] == [3, 10] and columns["0.step.after"] == [5, 12]
    assert dict(zip(document["categories"], document["words"], strict=True)) == CATEGORY_WORDS
    texts = document["texts"]
    at = 0
    for stack, length, where in zip(
        timeline.stacks, columns["stack.length"], columns["stack.where"], strict=True
    ):
        frames = columns["stack.frame"][at : at + length]
        at += length
        assert where == stack.where
        assert [
            (
                texts[columns["frame.file"][n]],
                columns["frame.line"][n],
                texts[columns["frame.function"][n]],
            )
            for n in frames
        ] == [astuple(timeline.frames[n]) for n in stack.frames]


@pytest.mark.slow
def test_the_worst_of_100_000_events_is_below_5_mb() -> None:
    assert len(packed(crowded(100_000))) < 4_700_000  # the scripts and styles take less than 0.1 MB


def test_the_same_timeline_gives_the_same_text() -> None:
    assert packed(crowded(500)) == packed(crowded(500))
