"""What of a GPU decides which kernels a step runs, and how large workspaces and scratch are.

The scratch is that of sums over rows, such as the gradient of a norm's weight or of a bias. If few
results have many terms each, CUDA splits the terms over thread blocks, which leave partial sums in
global memory: up to 113 MB on an A100. Source: Reduce.cuh, `setReduceConfig` and
`ReduceConfig::global_memory_size`, compared with what torch 2.12.1 allocates for 2,400 shapes.

The number of blocks depends on how many threads the card holds. Cards of one compute capability are
taken for the largest of them that people train on, so that they share one answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from oomdoctor.package_data import data_of
from oomdoctor.records.capability import capability_numbers
from oomdoctor.records.job.simulation import Target
from oomdoctor.units import MIB

Card = tuple[int, int]
"""A simulated GPU: its compute capability, which decides kernels and workspaces."""
_WITHOUT_COUNT = 6  # figures of a capability in the table, without a number of multiprocessors
_MOST_THREADS = 512  # of a block, `mnt_wrapper::MAX_NUM_THREADS`
_WARP = 32
_MOST_VALUES, _FEWEST_VALUES = 256, 16  # per thread
_MOST_BYTES = 2**31 - 1  # larger tensors are summed in halves, one after the other

WORKSPACES = ("cublas", "cublas of the autograd thread")  # forward pass, backward pass


def card_of(target: Target | None) -> Card:
    """The traits of a target that decide kernels; those of an A100 if they are unknown."""
    gpu = target.gpu if target is not None else None
    return capability_numbers((gpu.compute_capability if gpu is not None else None) or "8.0")


def workspace_bytes(card: Card, torch_release: tuple[int, int], setting: str) -> int:
    """Bytes of one cuBLAS workspace (CublasHandlePool.cpp, `parseChosenWorkspaceSize`).

    `setting` is CUBLAS_WORKSPACE_CONFIG, which decides if it is set. The default is :4096:2:16:8,
    which is 8,519,680 bytes. It is 32 MiB on Hopper and, from torch 2.12, on Blackwell (pull
    175344).
    """
    pools = re.findall(r":([0-9]+):([0-9]+)", setting)
    if pools:
        return sum(int(kib) * int(count) for kib, count in pools) * 1024
    major = card[0]
    large = (9,) if torch_release < (2, 12) else (9, 10, 12)
    return 32 * MIB if major in large else (2 * 4096 + 8 * 16) * 1024


def workspaces(card: Card, torch_release: tuple[int, int], setting: str) -> Mapping[str, int]:
    """Bytes of each cuBLAS workspace of a card, by its name on a tape."""
    return dict.fromkeys(WORKSPACES, workspace_bytes(card, torch_release, setting))


class RowSum(NamedTuple):
    """A sum over all but the last dimensions: `results` with `terms` each, in groups of `vector`.

    Both may grow with the micro-batch. `item` are the bytes of a term, `partial` those of a partial
    sum. `semaphores` is for the second block that it takes, a counter for each block of results.
    """

    results: int
    terms: int
    vector: int
    item: int
    partial: int
    semaphores: bool = False


@cache
def held_threads(card: Card) -> tuple[int, int]:
    """(multiprocessors, threads of each) of the cards with a compute capability."""
    rows = data_of("multiprocessors.toml").items()
    by_capability = {
        capability_numbers(name): row for name, row in rows if len(row) > _WITHOUT_COUNT
    }
    near = min(
        by_capability,
        key=lambda capability: abs(10 * capability[0] + capability[1] - 10 * card[0] - card[1]),
    )
    threads, *_, multiprocessors = by_capability[near]
    return multiprocessors, threads


def scratch_bytes(of: RowSum, card: Card) -> int:
    """Bytes of the partial sums, or of the semaphores; 0 where each block finishes its results."""
    terms = of.terms
    while of.results * terms * of.item > _MOST_BYTES and terms > 1:
        terms = -(-terms // 2)
    most = _MOST_THREADS // of.vector
    columns = min(_power_of_two(of.results // of.vector), most)
    rows = min(_power_of_two(terms), most)
    width = min(columns, _WARP)
    height = min(rows, most // width)
    width = min(columns, most // height)
    if terms < min(height * _FEWEST_VALUES, _MOST_VALUES):
        return 0
    values = -(-terms // height)
    multiprocessors, threads = held_threads(card)
    blocks = multiprocessors * (threads // (width * height))
    grid = -(-(of.results // of.vector) // width)
    if values < _MOST_VALUES or grid > blocks:
        return 0
    split = min(-(-blocks // grid), -(-values // _FEWEST_VALUES))
    split = max(split, -(-values // _MOST_VALUES))
    if split < 2:
        return 0
    return 4 * grid if of.semaphores else of.partial * of.results * split * width * of.vector


def _power_of_two(number: int) -> int:
    """The largest that is not above the number; 1 for less."""
    return 1 << (max(number, 1).bit_length() - 1)
