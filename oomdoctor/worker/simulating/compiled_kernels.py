"""What the kernels of torch.compile cost: chains of operators that it makes one kernel of each.

Inductor fuses operators without products into kernels that read what comes from outside and write
what others read (Ansel et al. 2024, "PyTorch 2", section 4). What only the backward pass reads
again is recomputed there if that moves fewer bytes (its min-cut partitioner). Sums over rows, such
as the gradients of a norm's weights, have separate kernels, which read their inputs again.

A chain ends at a product, at another kernel that is called, and where another layer begins. That
costs little: what both sides of a border read is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from oomdoctor.analysis.simulator.recorded import Cost
from oomdoctor.analysis.simulator.tape import Region
from oomdoctor.analysis.speed.memory_bound import COMPILED, SUM_OVER_ROWS
from oomdoctor.records.job.costs import OpCost

Bytes = Mapping[int, int]  # by block


@dataclass(frozen=True, slots=True)
class Access:
    """What the call of an operator reads and writes, in bytes of each block of memory.

    `place` is its unit and window; `fusible` says whether Inductor makes the kernel itself.
    `over_rows`: it sums over rows. The operator's own cost is `cost`.
    """

    place: tuple[Region | None, int]
    cost: OpCost
    fusible: bool
    over_rows: bool
    reads: Bytes
    writes: Bytes


@dataclass(slots=True, eq=False)
class _Kernel:
    """A chain of operators, or one that is called as it is."""

    members: Sequence[Access]
    reads: dict[int, int] = field(default_factory=dict)  # from outside of the chain
    writes: dict[int, int] = field(default_factory=dict)  # and nothing else is left of it

    def __post_init__(self) -> None:
        made: dict[int, int] = {}
        for member in self.members:
            for block, size in member.reads.items():
                if block not in made:
                    self.reads[block] = max(size, self.reads.get(block, 0))
            made |= member.writes
        self.writes = made

    @property
    def is_called(self) -> bool:
        return not self.members[0].fusible


def compiled(accesses: Sequence[Access]) -> list[Cost]:
    """The costs of the passes of a compiled model, from the calls of its operators in order."""
    kernels = [_Kernel(members) for members in _chains(accesses)]
    _inline(kernels)
    return [cost for kernel in kernels for cost in _costs(kernel)]


def _chains(accesses: Sequence[Access]) -> Iterator[Sequence[Access]]:
    for (_, fusible), members in groupby(accesses, key=lambda each: (each.place, each.fusible)):
        if fusible:
            yield list(members)
        else:
            yield from ([member] for member in members)


def _inline(kernels: Sequence[_Kernel]) -> None:
    """Leave out what no kernel writes: what its readers compute again from the chain's inputs."""
    readers: dict[int, list[_Kernel]] = {}
    for kernel in kernels:
        for block in kernel.reads:
            readers.setdefault(block, []).append(kernel)
    for kernel in kernels:
        if kernel.is_called:
            continue
        inputs = sum(kernel.reads.values())
        for block, size in list(kernel.writes.items()):
            others = readers.get(block)
            if block in kernel.reads:  # it is updated in place
                continue
            if others is None:
                # Nothing is left of what only the chain reads; a gradient is read by nothing here.
                if any(block in member.reads for member in kernel.members):
                    del kernel.writes[block]
                continue
            # Of a block that several kernels write, one may have been computed again already.
            others = [other for other in others if block in other.reads]
            if not others or any(other.is_called for other in others):
                continue
            if len(others) * inputs > size + sum(other.reads[block] for other in others):
                continue
            del kernel.writes[block]
            for other in others:
                del other.reads[block]
                for source, read in kernel.reads.items():
                    if source in other.reads or source not in other.writes:
                        other.reads[source] = max(read, other.reads.get(source, 0))
                    if other not in readers.setdefault(source, []):
                        readers[source].append(other)


def _costs(kernel: _Kernel) -> Iterator[Cost]:
    first = kernel.members[0]
    if kernel.is_called:
        yield Cost(*first.place, first.cost)
        return
    read, written = sum(kernel.reads.values()), sum(kernel.writes.values())
    largest = max(kernel.members, key=lambda member: member.cost.bytes_moved).cost.dtype
    yield Cost(*first.place, OpCost(COMPILED, "elementwise", largest, 0.0, float(read + written)))
    sums = OpCost(SUM_OVER_ROWS, "irregular", "float32", 0.0, float(read))
    yield from (Cost(*first.place, sums) for member in kernel.members if member.over_rows)
