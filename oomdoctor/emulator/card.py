"""What the command shall see: which card, how many, and how much of it others hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from oomdoctor.package_data import data_of
from oomdoctor.units import KIB

MAX_DEVICES = 64  # EMU_MAX_DEVICES in native/emu.h
EMULATED = " (emulated)"
_DRIVER = "580.65.06"  # a version that serves CUDA 12 and 13
# Where a card's facts are unknown: the middle of current cards. They steer only the scratch memory
# of reductions, and what `get_device_properties` shows.
_MULTIPROCESSORS, _L2_BYTES, _BUS_BITS = 108, 32 << 20, 384


@dataclass(frozen=True, slots=True)
class Card:
    """The facts of a card. `total_bytes` is what PyTorch reports, `nvml_total_bytes` what
    nvidia-smi reports, `context_bytes` what a process takes before its first allocation, and
    `nccl_bytes` what a communicator of two and of more ranks adds to that."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    nvml_total_bytes: int
    context_bytes: int
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    bus_bits: int | None = None
    nccl_bytes: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Devices:
    """`count` equal cards. Other processes hold `foreign_bytes` of each from the start.

    `mig` makes them instances of one GPU in MIG mode, of the size that the card states. With
    `alone`, a process stands for all ranks of its collectives: the others are taken to give what it
    gives.
    """

    card: Card
    count: int = 1
    foreign_bytes: int = 0
    mig: bool = False
    alone: bool = False


def split_count(text: str) -> tuple[int, str]:
    """Split "8xH100" into 8 and "H100"; without a count, it is 1.

    Raises:
        ValueError: the count is not between 1 and 64.
    """
    match = re.fullmatch(r"\s*(\d+)\s*[x×*]\s*(.+)", text, re.IGNORECASE)
    if match is None:
        return 1, text.strip()
    count = int(match[1])
    if not 1 <= count <= MAX_DEVICES:
        raise ValueError(f"from 1 to {MAX_DEVICES} devices can be emulated, not {count}")
    return count, match[2].strip()


def described(devices: Devices) -> str:
    """The text of the session's file `device`, which native/session.c reads."""
    card = devices.card
    name = card.name if card.name.endswith(EMULATED) else card.name + EMULATED
    facts = {
        "name": name.replace("\n", " "),
        "driver": _DRIVER,
        "major": card.capability[0],
        "minor": card.capability[1],
        "multiprocessors": card.multiprocessors or _MULTIPROCESSORS,
        **limits(card.capability),
        "l2_bytes": card.l2_bytes or _L2_BYTES,
        "bus_bits": card.bus_bits or _BUS_BITS,
        "total_bytes": card.total_bytes,
        "nvml_total_bytes": card.nvml_total_bytes,
        "context_bytes": card.context_bytes,
        "nccl_pair_bytes": card.nccl_bytes[0],
        "nccl_bytes": card.nccl_bytes[1],
        "count": devices.count,
        "mig": int(devices.mig),
        "alone": int(devices.alone),
    }
    return "".join(f"{key} {value}\n" for key, value in facts.items())


@cache
def _known() -> dict[tuple[int, int], dict[str, int]]:
    """The limits of each compute capability, from `data/multiprocessors.toml`."""
    return {
        (int(major), int(minor)): {
            "threads_per_multiprocessor": threads,
            "blocks_per_multiprocessor": blocks,
            "registers_per_multiprocessor": 64 * 1024,
            "shared_per_multiprocessor": shared * KIB,
            "shared_per_block_optin": most * KIB,
        }
        for named, (threads, blocks, shared, most, *_) in data_of("multiprocessors.toml").items()
        for major, _, minor in (named.partition("."),)
    }


def limits(capability: tuple[int, int]) -> dict[str, int]:
    """The limits of a multiprocessor of a compute capability such as (8, 6), as in a session.

    A capability that is not in the table has the limits of the nearest lower one. Raises
    ValueError below 6.0.
    """
    lower = [generation for generation in _known() if generation <= capability]
    if not lower:
        major, minor = capability
        raise ValueError(f"compute capability {major}.{minor} is below 6.0")
    return _known()[max(lower)]
