"""Reads the frames of tracebacks in every format.

It knows the lines of Python, IPython and rich, and tracebacks that were truncated or retyped, that
terminals, mails and forums wrapped, or that loggers and search engines joined into one line. Frames
are also quoted here as lines of a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.records.report.diagnosis import Frame

_RE = patterns("traceback")
EXCEPTION = _RE["exception"]
_LONGEST_LINE = 4000

_HEAD = "Traceback (most recent call last)"


def frame_in(text: str) -> Frame | None:
    """The frame in a line, without its quoted source line; None if there is none."""
    stripped = text[:_LONGEST_LINE].strip()
    if "\\" in stripped:
        stripped = _RE["markdown"].sub(r"\1", stripped)
    if "](http" in stripped:
        stripped = _RE["linked"].sub(r"\1", stripped)
    if 'File "' in stripped:
        # Several ranks may have written into one line: the last frame is the innermost.
        places = list(_RE["python"].finditer(stripped))
        if places:
            place = places[-1]
            return Frame(place[1].replace("\\", "/"), int(place[2]), place[3] or "<module>", None)
    if "in " in stripped or stripped.startswith(("Cell In", "Input In", "In [")):
        match = _RE["cell"].match(stripped)
        if match is not None:
            line = int(match[2]) if match[2] else None
            return Frame(f"Cell In[{match[1]}]", line, (match[3] or "<module>").strip(), None)
        match = _RE["ipython"].match(stripped)
        if match is not None:
            return Frame(match[1].replace("\\", "/"), int(match[2]), match[3], None)
        match = _RE["old_ipython"].match(stripped)
        if match is not None:
            return Frame(match[1], None, match[2], None)
        match = _RE["bare"].search(stripped)
        if match is not None:
            return Frame(match[1], int(match[2]), match[3], None)
    return None


def frames_in(texts: Sequence[str]) -> tuple[Frame, ...]:
    """The frames of one traceback, with their quoted source, outermost first."""
    frames: list[Frame] = []
    open_frame = False
    for text in _with_whole_places(texts):
        frame = frame_in(text)
        if frame is not None:
            frames.append(frame)
            open_frame = True
            continue
        if not frames:
            continue
        stripped = text.strip()
        arrow = _RE["arrow"].match(stripped)
        if arrow is not None:
            frames[-1] = replace(frames[-1], line=int(arrow[1]), code=arrow[2].strip() or None)
            open_frame = False
        elif (
            open_frame
            and stripped
            and not (_RE["carets"].match(stripped) or _RE["numbered"].match(stripped))
        ):
            frames[-1] = replace(frames[-1], code=_RE["markdown"].sub(r"\1", stripped)[:300])
            open_frame = False
    return tuple(frames)


def _with_whole_places(texts: Sequence[str]) -> list[str]:
    """The lines, with each place and the function after it on one line again."""
    whole: list[str] = []
    for text in texts:
        if whole and _RE["half_place"].match(whole[-1].strip()) and _RE["name"].match(text.strip()):
            whole[-1] = f"{whole[-1].rstrip()} {text.strip()}"
        else:
            whole.append(text)
    return whole


def starts_traceback(text: str) -> bool:
    """Whether a line is the head of a traceback, in any format."""
    return "Traceback" in text and _RE["start"].search(text) is not None


def rejoined(texts: Sequence[str], broken: Sequence[bool]) -> list[str]:
    """The lines, with wrapped lines joined again.

    `broken` says which lines fill the width at which the text was wrapped: the next line continues
    such a line, unless it is indented like a frame or a quoted line.
    """
    joined: list[str] = []
    full = False
    for text, fills in zip(texts, broken, strict=True):
        before = joined[-1] if joined else ""
        trimmed = before.rstrip()
        if full and not text.startswith(("  ", 'File "', "Traceback")):
            joined[-1] = before + text
        elif 'File "' in before and 'File "' not in text and _RE["half_path"].search(trimmed):
            joined[-1] = trimmed + text.strip()
        elif 'File "' in before and 'File "' not in text and _RE["half_frame"].search(trimmed):
            joined[-1] = f"{trimmed} {text.strip()}"
        else:
            joined.append(text)
        full = fills
    return joined


def from_one_line(text: str) -> list[str]:
    """The places and quoted lines of a traceback on a single line; [] if there is none."""
    head, _, last = text.rpartition(_HEAD)
    pieces = _RE["next_frame"].split(last)
    if len(pieces) < (2 if head or text.startswith(_HEAD) else 3):
        return []
    lines: list[str] = []
    for piece in pieces:
        match = _RE["place"].match(piece)
        if match is None:
            lines.append(piece)
            continue
        code = _RE["carets_within"].sub("", match[2])
        end = _RE["exception_line"].search(code)
        lines += [match[1], f"    {code[: end.start()] if end else code}"]
    return lines


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
