"""What a process launched on an emulated GPU: one record for each launch, in the order of time.

The emulated device writes three files for a process (native/launches.h):

    launches-PID   records of 64 bytes, little-endian; the first one whose kind is 0 ends them
    names-PID      a line for each name; records number them from 1
    calls-PID      a line of JSON for each kind of operator call, numbered from 1: its schema, and
                   the types and shapes of its arguments and results

A record has, in this order: the time in nanoseconds of the monotonic clock (8 bytes), the thread
and the call of an operator that it belongs to (4 bytes each; call 0: none), the kind and the type
(1 byte each), `what` (2), the name (4), the stream (8), and four numbers (8 bytes each) that depend
on the kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Literal, get_args

from oomdoctor.records.job.costs import TF32

LaunchKind = Literal[
    "kernel", "product", "copy", "fill", "collective", "library", "graph", "call", "mark"
]
CopyDirection = Literal["to_device", "to_host", "within", "on_host"]

_RECORD = Struct("<QIIBBHIQ4q")
_KINDS: tuple[LaunchKind, ...] = get_args(LaunchKind)
_DIRECTIONS: tuple[CopyDirection, ...] = get_args(CopyDirection)
_WORD = 0xFFFFFFFF
# cudaDataType of CUDA's library_types.h; the types of other products are not known by name.
_TYPES = {
    0: "float32", 1: "float64", 2: "float16", 3: "int8", 4: "complex64", 5: "complex128",
    14: "bfloat16", 28: "float8_e4m3fn", 29: "float8_e5m2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, the return of an operator ("call"), or a mark of the watch.

    `numbers` are: of a kernel its grid and block, three each; of a "product" (batch, m, n, k) of
    matrices that are stored by rows; of a "copy" and a "fill" its bytes; of a "collective" the
    bytes of one rank and the number of ranks; of a "graph" what happens to it (1: its capture
    begins, 2: it has ended, 3: it can be run, 4: it is run) and the graph, or what can be run and
    its graph; of a "call" its line in `calls`, from 0, and what
    it launched; of a mark of a step its number. `name` is that of the kernel as the compiler
    mangled it, of the library's function, of the collective, or of the phase that begins; None
    for the end of a step. `dtype` is torch's name of the type that a product multiplies, or `TF32`,
    and `epilogue` cuBLASLt's number of what it does to the result, 1 for nothing.
    """

    kind: LaunchKind
    at_s: float
    thread: int
    call: int
    stream: int
    name: str | None
    numbers: tuple[int, ...]
    dtype: str | None = None
    transposed: tuple[bool, bool] = (False, False)
    epilogue: int = 1
    direction: CopyDirection | None = None
    replay: int = 0
    """Which run of a CUDA graph launched it; 0: none. The device does not note those again."""


def read_launches(data: bytes, names: Sequence[str]) -> Iterator[Launch]:
    """The records of a process; `names` are the lines of its names."""
    whole = len(data) - len(data) % _RECORD.size
    for at_ns, thread, call, kind, dtype, what, name, stream, *of in _RECORD.iter_unpack(
        memoryview(data)[:whole]
    ):
        if not kind:
            return
        is_product, is_copy = _KINDS[kind - 1] == "product", _KINDS[kind - 1] == "copy"
        yield Launch(
            kind=_KINDS[kind - 1],
            at_s=at_ns / 1e9,
            thread=thread,
            call=call,
            stream=stream,
            name=names[name - 1] if 0 < name <= len(names) else None,
            numbers=_numbers(_KINDS[kind - 1], of, what),
            dtype=(TF32 if what & 4 else _TYPES.get(dtype)) if is_product else None,
            transposed=(bool(what & 1), bool(what & 2)) if is_product else (False, False),
            epilogue=(what >> 3 or 1) if is_product else 1,
            direction=_DIRECTIONS[what - 1] if is_copy else None,
        )


def _numbers(kind: LaunchKind, of: Sequence[int], what: int) -> tuple[int, ...]:
    if kind == "kernel":
        return tuple(half for word in of[:3] for half in (word & _WORD, word >> 32 & _WORD))
    if kind == "product":
        columns, rows, depth, batch = of
        return batch, rows, columns, depth
    if kind == "call":
        return of[0] - 1, of[1]
    if kind == "graph":
        return what, *of[:2]
    return tuple(of[:2]) if kind == "collective" else (of[0],)
