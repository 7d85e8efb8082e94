"""Readings of the emulated card beside measured ones, as lines and tables."""

from __future__ import annotations

from typing import Any


def error(r: dict[str, Any]) -> float:
    """The difference of the allocated peak as a share of the measured one."""
    measured = r["allocated_bytes"] - r["difference_bytes"]
    return float(r["difference_bytes"] / measured)


def device_error(r: dict[str, Any]) -> float | None:
    """The same of the whole device, as a share of what nvidia-smi showed; None if unknown."""
    difference = r["device_difference_bytes"]
    return None if difference is None else float(difference / (r["device_bytes"] - difference))


def line(r: dict[str, Any]) -> str:
    """A reading in one line."""
    share = device_error(r)
    device = "-" if share is None else f"{share:+.2%}"
    return (
        f"{r['id']:36} measured {r['measured_bytes']:>14,}  emulated {r['allocated_bytes']:>14,}  "
        f"difference {r['difference_bytes']:>+12,} ({error(r):+.3%})  nvidia-smi {device}"
    )


def table(readings: list[dict[str, Any]]) -> str:
    """The table of docs/emulation.md on published runs."""
    lines = [
        "| published run | measured, bytes | emulated, bytes | difference |",
        "|---|---|---|---|",
    ]
    for r in readings:
        emulated = f"{r['allocated_bytes']:,}"
        lines.append(f"| {r['id']} | {r['measured_bytes']:,} | {emulated} | {_share(r)} |")
    return "\n".join(lines)


def further_table(readings: list[dict[str, Any]]) -> str:
    """The table of docs/emulation.md on the benchmark's further runs."""
    lines = [
        "| further run | emulated, bytes | difference | from nvidia-smi |",
        "|---|---|---|---|",
    ]
    for r in readings:
        share = device_error(r)
        device = "-" if share is None else f"{share:+.2%}"
        lines.append(f"| {r['id']} | {r['allocated_bytes']:,} | {_share(r)} | {device} |")
    return "\n".join(lines)


def device_table(readings: list[dict[str, Any]]) -> str:
    """The table of docs/emulation.md on reserved memory, beside what nvidia-smi showed."""
    lines = [
        "| published run | nvidia-smi, bytes | emulated, reserved bytes | the rest |",
        "|---|---|---|---|",
    ]
    for r in readings:
        if (shown := r["measured_device_bytes"]) is not None:
            rest = shown - r["reserved_bytes"]
            lines.append(f"| {r['id']} | {shown:,} | {r['reserved_bytes']:,} | {rest:,} |")
    return "\n".join(lines)


def _share(r: dict[str, Any]) -> str:
    return f"{error(r):+.2%}" if r["difference_bytes"] else "0"
