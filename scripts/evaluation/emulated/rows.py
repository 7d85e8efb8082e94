"""Which published rows can be run on the emulated GPU as they were, and on which card."""

from __future__ import annotations

import json
from typing import Any

from published.rows import FILE, find_card

from oomdoctor.analysis.memory.overhead import context_bytes, device_total_bytes
from oomdoctor.emulator.card import Card

_STACK = "fms"  # the rows that state every setting


def all_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return rows


def why_not(row: dict[str, Any]) -> str | None:
    """Why a row cannot be run; None if it can."""
    if row.get("stack") != _STACK:
        return "its stack and settings are not all stated"
    return None


def card(row: dict[str, Any]) -> Card:
    """The card of a row."""
    gpu = find_card(row["gpu"])
    assert gpu is not None, f"no card {row['gpu']}"
    major, minor = (gpu.compute_capability or "8.0").split(".")
    total, _ = device_total_bytes(gpu)
    return Card(
        name=gpu.name,
        capability=(int(major), int(minor)),
        total_bytes=total,
        nvml_total_bytes=gpu.total_bytes or gpu.memory_bytes,
        context_bytes=context_bytes(gpu).likely,
        multiprocessors=gpu.multiprocessors,
        l2_bytes=gpu.l2_bytes,
        bus_bits=gpu.memory_bus_bits,
    )
