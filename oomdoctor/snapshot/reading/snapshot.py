"""A snapshot as torch wrote it: settings, and for each device its segments and its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.report.diagnosis import SettingValue
from oomdoctor.snapshot.reading.events import NO_STACK, Events, Stacks, Traces
from oomdoctor.snapshot.reading.plain_pickle import PickleError, load

_DUMP = 'write one with torch.cuda.memory._dump_snapshot("memory_snapshot.pickle")'


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A part of a segment at the end: `size` bytes, of which `requested` were asked for.

    `requested` is 0 for a free one. A block that `awaits` another stream is free for the program.
    """

    address: int
    size: int
    requested: int
    awaits: bool
    stack: int


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """Memory that the process had reserved at the end, with its blocks by address."""

    address: int
    size: int
    is_expandable: bool
    blocks: tuple[HeldBlock, ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """A part of the program that torch noted by name, such as `Optimizer.step#AdamW.step`."""

    name: str
    begins: bool
    at_us: int


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """One device: what was reserved when the snapshot was written, and what happened before."""

    index: int
    segments: tuple[HeldSegment, ...]
    events: Events
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a file holds. `settings` are the allocator's that are a text or a number, by torch's
    names; {} before 2.2.
    """

    devices: tuple[DeviceSnapshot, ...]
    settings: Mapping[str, SettingValue]
    stacks: Stacks


def snapshot_of(value: Any, stacks: Stacks) -> Snapshot:
    """The snapshot in the value of a pickle that `Traces` has read.

    Raises:
        PickleError: it is something else.
    """
    if type(value) is list:  # torch 1.13: the segments alone
        value = {"segments": value}
    if type(value) is not dict or type(value.get("segments")) is not list:
        raise PickleError('it is no snapshot: it has no "segments"')
    try:
        return _snapshot(value, stacks)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"[:120]
        raise PickleError(f"it is no snapshot that torch wrote ({what})") from None


def _snapshot(value: dict[Any, Any], stacks: Stacks) -> Snapshot:
    segments: dict[int, list[HeldSegment]] = {}
    for entry in value["segments"]:
        segments.setdefault(_number(entry, "device"), []).append(_segment(entry, stacks))
    traces = [_events(trace) for trace in value.get("device_traces") or ()]
    annotations: dict[int, list[Annotation]] = {}
    for entry in value.get("external_annotations") or ():
        name, begins = str(entry["name"]), entry.get("stage") == "START"
        note = Annotation(name, begins, _number(entry, "time_us"))
        annotations.setdefault(_number(entry, "device"), []).append(note)
    used = {index for index, events in enumerate(traces) if len(events)} | segments.keys()
    told = value.get("allocator_settings")
    settings = told.items() if type(told) is dict else ()
    return Snapshot(
        devices=tuple(
            DeviceSnapshot(
                index,
                tuple(sorted(segments.get(index, ()), key=lambda segment: segment.address)),
                traces[index] if index < len(traces) else Events(),
                tuple(annotations.get(index, ())),
            )
            for index in sorted(used)
        ),
        settings={k: v for k, v in settings if isinstance(v, str | int | float)},
        stacks=stacks,
    )


def _events(trace: list[Any]) -> Events:
    if trace and type(trace[0]) is not Events:
        raise TypeError("a trace holds something that is not an event")
    return trace[0] if trace else Events()


def _segment(entry: dict[Any, Any], stacks: Stacks) -> HeldSegment:
    blocks = tuple(_blocks(entry, stacks))
    address = entry.get("address", blocks[0].address if blocks else 0)
    return HeldSegment(
        address=int(address),
        size=_number(entry, "total_size"),
        is_expandable=bool(entry.get("is_expandable", False)),
        blocks=blocks,
    )


def _blocks(entry: dict[Any, Any], stacks: Stacks) -> Iterator[HeldBlock]:
    at = int(entry.get("address", 0))
    for block in entry["blocks"]:
        size = _number(block, "size")
        # Until torch 2.0 the frames were in a history; the first of it is the block itself.
        history = block.get("history") or [{}]
        frames = block.get("frames") or history[0].get("frames") or (NO_STACK,)
        at = int(block.get("address", history[0].get("addr", at)))
        state = block["state"]
        is_free = state == "inactive"
        requested = 0 if is_free else int(block.get("requested_size", size))
        yield HeldBlock(at, size, requested, state == "active_pending_free", int(frames[0]))
        at += size


def _number(entry: dict[Any, Any], key: str) -> int:
    number = entry[key]
    if type(number) is not int or not -(2**63) <= number < 2**64:
        raise TypeError(f"{key!r} is not a number")
    return number


def read_snapshot(path: Path, progress: Callable[[float], None] | None = None) -> Snapshot:
    """The snapshot in a file; `progress` gets the share that was read, now and then.

    Nothing in the file is run.

    Raises:
        OomDoctorError: it cannot be read, or is no snapshot (exit 2).
    """
    traces = Traces()
    try:
        return snapshot_of(load(path, traces, progress), traces.stacks)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except PickleError as error:
        raise _unreadable(path, _kind(path) or str(error)) from None


def _unreadable(path: Path, why: str) -> OomDoctorError:
    return usage_error("not_a_snapshot", f"cannot read {path} as a memory snapshot: {why}", _DUMP)


def _kind(path: Path) -> str | None:
    """What a file is that was taken for a snapshot by mistake, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK"):
        return "it is a zip archive, as torch.save writes"
    if head.startswith(b"\x1f\x8b"):
        return "it is compressed; unpack it with gunzip"
    if head[:1] in (b"{", b"[", b"<"):
        return "it is a text"
    return None
