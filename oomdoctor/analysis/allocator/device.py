"""The device under the allocator: its bytes, and addresses that are never reused."""

from __future__ import annotations

# The address space of a device without a capacity: more than any device has.
_UNBOUNDED = 2**42


class Device:
    """Bytes taken from the device (cudaMalloc, cuMemMap) and their peak."""

    __slots__ = ("_next_address", "capacity_bytes", "peak_bytes", "taken_bytes")

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self.peak_bytes = 0
        self._next_address = 0

    @property
    def free_bytes(self) -> int | None:
        return None if self.capacity_bytes is None else self.capacity_bytes - self.taken_bytes

    def take(self, size: int) -> bool:
        """Take all the bytes, or none."""
        taken = self.taken_bytes + size
        if self.capacity_bytes is not None and taken > self.capacity_bytes:
            return False
        self.taken_bytes = taken
        self.peak_bytes = max(self.peak_bytes, taken)
        return True

    def give_back(self, size: int) -> None:
        self.taken_bytes -= size

    def address_space(self, size: int) -> int:
        """The first address of an unused range."""
        address = self._next_address
        self._next_address += size
        return address

    def expandable_space(self, page: int) -> int:
        """Bytes of address space of an expandable segment: 9/8 of the device, in whole pages."""
        total = self.capacity_bytes or _UNBOUNDED
        return -(-(total + total // 8) // page) * page
