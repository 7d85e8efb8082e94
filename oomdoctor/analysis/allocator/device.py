"""The device under the allocator: so many bytes, and addresses that are never used twice."""

from __future__ import annotations

# Room for addresses where no capacity bounds it: more than any device has.
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
        """Takes the bytes, all or none of them."""
        taken = self.taken_bytes + size
        if self.capacity_bytes is not None and taken > self.capacity_bytes:
            return False
        self.taken_bytes = taken
        self.peak_bytes = max(self.peak_bytes, taken)
        return True

    def give_back(self, size: int) -> None:
        self.taken_bytes -= size

    def address_space(self, size: int) -> int:
        """The first address of a stretch that nothing else has."""
        address = self._next_address
        self._next_address += size
        return address

    def expandable_space(self, page: int) -> int:
        """Bytes of address space of one expandable segment: 9/8 of the device, in whole pages."""
        total = self.capacity_bytes or _UNBOUNDED
        return -(-(total + total // 8) // page) * page
