"""The device under the allocator: its bytes, and the addresses of what is taken from it."""

from __future__ import annotations

from oomdoctor.analysis.allocator.address_space import AddressSpace

# The address space of a device without a capacity: more than any device has.
_UNBOUNDED = 2**42


class Device:
    """Bytes taken from the device (cudaMalloc, cuMemMap) and their peak.

    `addresses` is a model of where the driver places segments to use instead of the usual one.
    """

    __slots__ = ("_addresses", "capacity_bytes", "peak_bytes", "taken_bytes")

    def __init__(self, capacity_bytes: int | None, addresses: AddressSpace | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self.peak_bytes = 0
        self._addresses = addresses or AddressSpace()

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

    def place(self, size: int) -> int:
        """The address of a new segment."""
        return self._addresses.place(size)

    def remove(self, address: int, size: int) -> None:
        """Give back the address space of a segment."""
        self._addresses.remove(address, size)

    def expandable_space(self, page: int) -> int:
        """Bytes of address space of an expandable segment: 9/8 of the device, in whole pages."""
        total = self.capacity_bytes or _UNBOUNDED
        return -(-(total + total // 8) // page) * page
