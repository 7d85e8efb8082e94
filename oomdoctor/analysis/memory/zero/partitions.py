"""Which rank owns which part of the parameters."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.analysis.memory.zero.setting import Parameter

# DeepSpeed aligns flat buffers so that every partition starts at a multiple of two elements.
_ALIGNMENT = 2


def shard_elements(trained: int, ranks: int) -> int:
    """Elements of one rank's partition in stages 1 and 2: all trained ones, padded and split."""
    alignment = _ALIGNMENT * ranks
    return -(-trained // alignment) * alignment // ranks


def gathered_shard(parameters: Sequence[Parameter], ranks: int) -> int:
    """Elements of one rank's shards in stage 3, which splits each parameter on its own."""
    return sum(-(-parameter.elements // ranks) for parameter in parameters)


def owned(parameters: Sequence[Parameter], ranks: int, rank: int) -> frozenset[int]:
    """The numbers of the trained parameters of which a rank owns a part in stages 1 and 2.

    `parameters` are the trained ones, in their order. DeepSpeed keeps whole gradients of these,
    even where a partition ends inside of one.
    """
    size = shard_elements(sum(p.elements for p in parameters), ranks)
    low, high = rank * size, (rank + 1) * size
    found, start = [], 0
    for number, parameter in enumerate(parameters):
        end = start + parameter.elements
        if start < high and end > low:
            found.append(number)
        start = end
    return frozenset(found)


def deciding_ranks(ranks: int) -> tuple[int, ...]:
    """The ranks that may need the most: all of a few, else a sample with the first and last."""
    if ranks <= 64:
        return tuple(range(ranks))
    return tuple(sorted({0, ranks - 1, *(ranks * part // 62 for part in range(62))}))
