"""Reads the message that starts at a line, and says which resource it is about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import NamedTuple

from oomdoctor.explain.reading.lines.window import Reading
from oomdoctor.explain.reading.parse import Message, read_message
from oomdoctor.records.report.diagnosis import Frame, Numbers, Resource

_PINNED = re.compile(r"pin_memory|allocate_cpu_cache|cudaHostAlloc|cudaMallocHost|pinned")


class Read(NamedTuple):
    """A message, the indices of its lines, and the text that it was read from."""

    message: Message
    told: list[int]
    flat: str


def best(readings: Iterable[Reading]) -> Read | None:
    """The message of the reading with the most figures."""
    best: tuple[int, Read] | None = None
    for reading in readings:
        message = read_message(reading.flat, within=reading.ends[0][1])
        if message is None:
            continue
        told = sum(getattr(message.event, figure.name) is not None for figure in fields(Numbers))
        if best is None or told > best[0]:
            best = told, Read(message, reading.lines_to(message.end), reading.flat)
    return None if best is None else best[1]


def dialect_and_resource(
    message: Message, frames: tuple[Frame, ...], around: str, wsl: bool
) -> tuple[str, Resource]:
    """The dialect and the resource: the driver's "out of memory" may mean pinned host memory."""
    name = message.dialect.name
    if name == "cuda_driver":
        called = " ".join(f"{f.function} {f.code or ''}" for f in frames[-3:])
        if _PINNED.search(called) or (not frames and _PINNED.search(around)):
            return ("wsl_pinned" if wsl else name), "host"
    return name, message.resource
