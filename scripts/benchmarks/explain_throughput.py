"""How fast and in how much memory `explain` reads logs of a gigabyte.

    python scripts/benchmarks/explain_throughput.py [--gib 1.0]

Each kind of log is made on the fly, read in a process of its own, and its time and the process's
peak resident memory are printed; the aim is 10 s and 150 MiB for 1 GiB on one core.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 31.73 GiB of which 618.19 MiB is free. Including non-PyTorch memory, this process "
    "has 31.12 GiB memory in use. Of the allocated memory 30.59 GiB is allocated by PyTorch, and "
    "163.22 MiB is reserved by PyTorch but unallocated.\n"
)
TRACE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 10, in <module>\n    loss.backward()\n'
    '  File "/x/site-packages/torch/_tensor.py", line 630, in backward\n    torch.x(\n' + OOM
)
STEP = (
    "2026-01-02 10:11:12,345 - trainer - INFO - step {} loss 1.2345 lr 1.0e-05 mem 21.5GiB\n"
    "{{'loss': 1.1032, 'grad_norm': 0.42, 'learning_rate': 1.9e-05, 'epoch': 0.12}}\n"
    "[rank3]: NCCL INFO Channel 00/24 :    0   1   2   3   4   5   6   7 via P2P/CUMEM\n"
)


def healthy(size: int) -> Iterator[bytes]:
    """A run of many steps that dies at the end."""
    block = "".join(STEP.format(i) for i in range(1200)).encode()
    for _ in range(size // len(block)):
        yield block
    yield TRACE.encode()


def failing(size: int) -> Iterator[bytes]:
    """The same failure caught over and over."""
    block = ("".join(STEP.format(i) for i in range(20)) + TRACE).encode() * 40
    for _ in range(size // len(block)):
        yield block


def ranks(size: int) -> Iterator[bytes]:
    """64 ranks that write into each other's lines, errors in every line."""
    block = b"".join(
        b"[rank%d]: W0102 10:11:12.1 77 retry.py:12] Error: connection reset, trying again %d\n"
        % (i % 64, i)
        for i in range(4000)
    )
    for _ in range(size // len(block)):
        yield block
    yield b"[rank7]: " + OOM.encode()


def one_line(size: int) -> Iterator[bytes]:
    """A single line without an end."""
    block = b"lorem ipsum 0123456789 " * 8000
    for _ in range(size // len(block)):
        yield block
    yield OOM.encode()


def bars(size: int) -> Iterator[bytes]:
    """Progress bars that were never broken into lines."""
    block = b"".join(
        b"\r 81%%|########  | %d/845 [02:06<00:29,  5.44it/s]" % i for i in range(3000)
    )
    for _ in range(size // len(block)):
        yield block
    yield b"\n" + TRACE.encode()


KINDS = {kind.__name__: kind for kind in (healthy, failing, ranks, one_line, bars)}


def main() -> None:
    """Run every kind in a child, or one kind when asked to be the child."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--kind", choices=tuple(KINDS))
    asked = parser.parse_args()
    if asked.kind is None:
        for kind in KINDS:
            command = [sys.executable, __file__, "--gib", str(asked.gib), "--kind", kind]
            subprocess.run(command, check=True)
        return
    start = time.perf_counter()
    found, facts = scan(lines(KINDS[asked.kind](int(asked.gib * 1024**3))))
    elapsed = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{asked.kind:<10} {asked.gib:.2f} GiB in {elapsed:5.1f} s  {peak:5.0f} MiB peak  "
        f"{len(found)} failures, {facts.line_count:,} lines"
    )


if __name__ == "__main__":
    main()
