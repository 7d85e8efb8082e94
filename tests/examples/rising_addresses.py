"""Addresses in ascending order, so that a test sees segments in the order of their making."""

from __future__ import annotations

from oomdoctor.analysis.allocator.device import AddressSpace


class Rising(AddressSpace):
    """Each segment lies above all earlier ones."""

    def __init__(self) -> None:
        self._next = 0

    def place(self, size: int) -> int:
        address, self._next = self._next, self._next + size
        return address

    def remove(self, address: int, size: int) -> None:
        pass
