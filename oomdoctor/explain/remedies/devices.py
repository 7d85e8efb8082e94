"""What to type for a device (its processes, its allocator) and for host memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.package_data import data_of
from oomdoctor.records.report.diagnosis import ListedProcess
from oomdoctor.units import format_bytes


class Device(NamedTuple):
    """A kind of device: its tools and variables, as `data/devices.toml` has them."""

    processes: str
    visible: str
    allocator: str
    quantizes: bool = False


_DEVICES = {name: Device(**row) for name, row in data_of("devices.toml").items()}
# How data is read in pieces, with the library that the text shows.
_IN_PIECES = (
    (
        r"pandas|read_csv|data ?frame|parquet",
        "for part in pandas.read_csv(path, chunksize=100_000): ...",
    ),
    (r"load_dataset|datasets/", "load_dataset(..., streaming=True)"),
)
_SLICES = 'numpy.load(path, mmap_mode="r")  # and work on one slice at a time'
_VENDOR = re.compile(r"\b(NPU|MLU|MUSA|HPU) out of memory")  # as their builds of torch print it


def device_of(dialect: str, message: str) -> Device:
    """The kind of device whose memory ran out; an NVIDIA GPU if nothing says another."""
    vendor = _VENDOR.search(message)
    return _DEVICES.get(dialect if vendor is None else vendor[1], _DEVICES["cuda"])


def device_values(
    dialect: str, message: str, lines: Sequence[str], listed: Sequence[ListedProcess]
) -> dict[str, str]:
    """The values of the $names in texts and lines about devices, from what a failure prints."""
    device = device_of(dialect, message)
    nvidia = device is _DEVICES["cuda"]
    hidden = "fuser finds processes that nvidia-smi does not list, such as an old notebook"
    since = "this torch has no expandable segments; 2.1 and later do, and they help more"
    largest = max(listed, key=lambda one: one.used_bytes).pid if listed else "PID"
    # torch 2.9 and later name one variable for all devices
    newer = any("PYTORCH_ALLOC_CONF" in text for text in (message, *lines))
    return {
        "processes": f"{device.processes}; kill {largest}",
        "hidden": hidden if nvidia else "",
        "visible": device.visible,
        "alloc_conf": "PYTORCH_ALLOC_CONF" if newer else device.allocator,
        "split": "max_split_size_mb:128"
        if nvidia
        else "garbage_collection_threshold:0.8,max_split_size_mb:512",
        "split_note": since if nvidia else "",
        "flash": '; "flash_attention_2" does the same' if nvidia else "",
    }


def host_values(case: Case) -> dict[str, str]:
    """The values of the $names in texts and lines about host memory."""
    limit = case.incident.event.allowed_bytes if case.resource == "host" else None
    pieces = (line for pattern, line in _IN_PIECES if case.logged(pattern))
    now = "" if limit is None else f" (now {format_bytes(limit)})"
    return {"limit": now, "pieces": next(pieces, _SLICES)}
