"""How the work of a function grows with its input, in a test that a busy machine cannot fail.

Only the processor time of this process counts, and only the ratio of two sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def grows_no_faster(work: Callable[[int], object], size: int, limit: float) -> bool:
    """Whether four times the size takes at most `limit` times the time, in one of three tries.

    Linear work takes 4 times as long, quadratic work 16 times.
    """
    return any(_seconds(work, 4 * size) <= limit * _seconds(work, size) for _ in range(3))


def _seconds(work: Callable[[int], object], size: int) -> float:
    begin = time.process_time()
    work(size)
    return time.process_time() - begin
