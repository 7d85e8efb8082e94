"""What the frames of an incident say, and how they are quoted."""

from __future__ import annotations

from collections.abc import Sequence

from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.records.report.diagnosis import Frame

_RE = patterns("frames")


def quote(frame: Frame) -> str:
    """A frame, written as a line of a traceback."""
    number = "" if frame.line is None else f", line {frame.line}"
    code = f": {frame.code}" if frame.code else ""
    path = frame.file.replace("\\", "/")
    return f'File "{path}"{number}, in {frame.function}{code}'


def scores_line(frames: Sequence[Frame]) -> Frame | None:
    """The innermost line outside PyTorch, if it makes attention scores or works on them.

    They have a row and a column for each token: they grow with the square of the length. Only eager
    attention stores them; fused kernels never do.
    """
    own = [
        frame for frame in frames if not _RE["of_libraries"].search(frame.file.replace("\\", "/"))
    ]
    if not own or not own[-1].code:
        return None
    frame, code = own[-1], own[-1].code
    if _RE["not_scores"].search(code) or _RE["output"].search(code):
        return None
    if _RE["scores"].search(code):
        return frame
    around = " ".join(f"{f.file} {f.function} {f.code or ''}" for f in own[-2:])
    return frame if _RE["plain"].search(code) and _RE["inside_attention"].search(around) else None
