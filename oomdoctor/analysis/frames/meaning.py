"""Looks up the phase of one frame in `phase_table`."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from oomdoctor.analysis.frames.phase_table import ROWS
from oomdoctor.records.diagnosis import Frame, ReadPhase

# Compiled on first use: compiling the whole table would double the startup time.
_compiled = cache(re.compile)
_LONGEST_NAME = 120


@lru_cache(maxsize=1024)
def meaning(frame: Frame, quoted: bool = True, weak: bool = True) -> ReadPhase:
    """The phase of a frame.

    Without `quoted`, rows that only check the quoted line are skipped; without `weak`, weak rows.
    """
    # IPython writes the class before the method.
    names = {frame.function[:_LONGEST_NAME], frame.function.rpartition(".")[2][:_LONGEST_NAME]}
    for row in ROWS:
        if row.weak and not weak:
            continue
        if not quoted and not row.file and not row.function:
            continue
        if row.file and not _compiled(row.file).search(frame.file):
            continue
        if row.function and not any(_compiled(row.function).fullmatch(name) for name in names):
            continue
        if row.code and (frame.code is None or not _compiled(row.code).search(frame.code)):
            continue
        return row.phase
    return "unknown"
