"""Devices to simulate a rung for."""

from __future__ import annotations

from oomdoctor.records.job.simulation import Target
from oomdoctor.system.catalogue import find_gpu

GIB = 1 << 30


def target(name: str, usable_bytes: int = GIB) -> Target:
    """A card of the catalogue, of which so much may be used."""
    gpu = find_gpu(name)
    assert gpu is not None, name
    return Target(name, usable_bytes, usable_bytes, 0, gpu)
