"""What one multiprocessor of an NVIDIA GPU can hold, by compute capability.

The numbers are from the table "Technical Specifications per Compute Capability" of the CUDA C++
Programming Guide. What differs among cards of one capability is in `oomdoctor/data/gpus.json`.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.units import KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one multiprocessor, as `cudaDeviceProp` reports them.

    `shared_bytes_per_block_optin` is the most that a kernel can ask for. From 8.0 on, it is 1 KiB
    less than the multiprocessor has, because CUDA reserves this much for each block.
    """

    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block_optin: int


def _row(threads: int, blocks: int, shared_kib: int, optin_kib: int) -> Limits:
    """All these capabilities have 65,536 registers of 32 bits."""
    return Limits(threads, blocks, 64 * 1024, shared_kib * KIB, optin_kib * KIB)


_KNOWN: dict[tuple[int, int], Limits] = {
    (6, 0): _row(2048, 32, 64, 48),
    (6, 1): _row(2048, 32, 96, 48),
    (6, 2): _row(2048, 32, 64, 48),
    (7, 0): _row(2048, 32, 96, 96),
    (7, 5): _row(1024, 16, 64, 64),
    (8, 0): _row(2048, 32, 164, 163),
    (8, 6): _row(1536, 16, 100, 99),
    (8, 7): _row(1536, 16, 164, 163),
    (8, 8): _row(1536, 16, 100, 99),
    (8, 9): _row(1536, 24, 100, 99),
    (9, 0): _row(2048, 32, 228, 227),
    (10, 0): _row(2048, 32, 228, 227),
    (10, 3): _row(2048, 32, 228, 227),
    (11, 0): _row(1536, 24, 228, 227),
    # NVIDIA's Blackwell Tuning Guide says 32 blocks and 128 KiB for 12.0; real cards report these.
    (12, 0): _row(1536, 24, 100, 99),
    (12, 1): _row(1536, 24, 100, 99),
}


def limits(capability: tuple[int, int]) -> Limits:
    """The limits of a compute capability such as (8, 6).

    A capability that is not in the table has the limits of the nearest lower one. Raises
    ValueError below 6.0.
    """
    lower = [known for known in _KNOWN if known <= capability]
    if not lower:
        major, minor = capability
        raise ValueError(f"compute capability {major}.{minor} is below 6.0")
    return _KNOWN[max(lower)]
