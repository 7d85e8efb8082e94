"""Keeps the most recent lines of a log, by process, and finds messages and tracebacks in them.

It is bounded in lines and characters. The index of a line in the stream never changes; lines before
`start` are gone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import NamedTuple

from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.explain.reading.lines.prefixes import Split, split_line
from oomdoctor.explain.reading.lines.traceback import (
    EXCEPTION,
    frames_in,
    from_one_line,
    rejoined,
    starts_traceback,
)
from oomdoctor.explain.reading.parse import Message, flatten, read_message
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.records.report.diagnosis import Frame, Numbers

_RE = patterns("window")

AHEAD = 24  # lines after an opening that may belong to it
_BEHIND = 3000  # lines before it that may be its traceback
_BEHIND_LATER = 100  # used after _MOST_WALKED lines, to limit the time
_MOST_WALKED = 100_000
_MOST_LINES = 6000
_MOST_CHARACTERS = 4_000_000
_MESSAGE_CHARACTERS = 1800
_GAP = 60  # lines without a frame that end a traceback without a head
_NARROWEST, _WIDEST = 20, 250  # columns of a terminal that wraps lines


class Reading(NamedTuple):
    """Lines of one process joined into one, and where each of them ends."""

    flat: str
    ends: tuple[tuple[int, int], ...]

    def lines_to(self, end: int) -> list[int]:
        """The indices of the lines that contain the text up to a position."""
        last = next((i for i, stop in self.ends if stop >= end), self.ends[-1][0])
        return [i for i, _ in self.ends if i <= last]


class Read(NamedTuple):
    """A message, the indices of its lines, and the text that it was read from."""

    message: Message
    told: list[int]
    flat: str

    @property
    def figures(self) -> int:
        """How many figures the message has."""
        event = self.message.event
        return sum(getattr(event, figure.name) is not None for figure in fields(Numbers))


class Window:
    """The lines of a log that are still in memory."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._splits: dict[int, Split] = {}
        self._characters = 0
        self._heads: deque[int] = deque()  # lines that mention a traceback
        self._ends: dict[str, int] = {}  # the last line that ended one, by process
        self._walked = 0  # lines searched for tracebacks, counting repeats
        self.start = 0

    @property
    def end(self) -> int:
        return self.start + len(self._lines)

    def add(self, line: Line) -> None:
        """Add one line, and drop the oldest if there are too many."""
        if "Traceback" in line.text:
            self._heads.append(self.end)
        self._lines.append(line)
        self._characters += len(line.text)
        while len(self._lines) > _MOST_LINES or self._characters > _MOST_CHARACTERS:
            if len(self._lines) <= AHEAD + 1:
                break
            gone = self._lines.popleft()
            self._characters -= len(gone.text)
            self._splits.pop(self.start, None)
            self.start += 1
            if self._heads and self._heads[0] < self.start:
                self._heads.popleft()

    def line(self, index: int) -> Line:
        return self._lines[index - self.start]

    def split(self, index: int) -> Split:
        """Tag, rank and text of a line."""
        split = self._splits.get(index)
        if split is None:
            split = self._splits[index] = split_line(self.line(index).text)
        return split

    def tags(self) -> Iterator[str]:
        """The processes that the lines name."""
        return (self.split(index).tag for index in range(self.start, self.end))

    def after(self, index: int) -> range:
        """The lines after one that may still belong to it."""
        return range(index + 1, min(index + AHEAD, self.end))

    def around(self, index: int, tag: str, before: int = 8, after: int = 6) -> str:
        """The lines of one process near a line."""
        near = range(max(self.start, index - before), min(index + after, self.end))
        return "\n".join(self.split(i).text[:2000] for i in self._same(near, tag))

    def last(self, pattern: re.Pattern[str]) -> str | None:
        """The last line in memory that matches a pattern."""
        texts = (line.text for line in reversed(self._lines))
        return next((text for text in texts if pattern.search(text[:2000])), None)

    def before(self, index: int, tag: str | None, most: int) -> Iterator[str]:
        """The text of a line and of up to `most` lines before it, the nearest first.

        Only those of one process and those that name none; all if `tag` is None.
        """
        for i in range(index, max(self.start, index - most) - 1, -1):
            if tag is None or self.split(i).tag in ("", tag):
                yield self.split(i).text[:2000]

    def message(self, index: int, tag: str) -> Read | None:
        """The message of one process that opens at a line, by the reading with the most figures."""
        readings = [
            Read(message, reading.lines_to(message.end), reading.flat)
            for reading in self._readings(index, tag)
            if (message := read_message(reading.flat, within=reading.ends[0][1])) is not None
        ]
        return max(readings, key=lambda read: read.figures, default=None)

    def _readings(self, index: int, tag: str) -> Iterator[Reading]:
        """The text of one process from a line on; twice if wrapping may have split words."""
        held = self._message_lines(index, tag)
        yield _joined(held, None)
        widths = [len(self.line(i).text) for i, _ in held]
        if len(held) > 1 and _NARROWEST <= max(widths) == widths[0] <= _WIDEST:
            full = [i for (i, _), width in zip(held, widths, strict=True) if width == widths[0]]
            lead = self._lead(index)
            yield _joined(held, {i for i in full if not self._space_after(i, lead)})

    def _lead(self, index: int) -> int:
        """How many characters precede the text of a line: a rank, a quotation mark, spaces."""
        return len(self.line(index).text) - len(self.split(index).text)

    def _space_after(self, index: int, lead: int) -> bool:
        """Whether a line ends with a space, or the next one starts with one after its prefix."""
        if self.line(index).text.endswith(" ") or index + 1 >= self.end:
            return True
        return self.split(index + 1).text.startswith(" ") or self._lead(index + 1) not in (0, lead)

    def _message_lines(self, index: int, tag: str) -> list[tuple[int, str]]:
        """The lines that may form one message, starting from one, flattened."""
        held: list[tuple[int, str]] = []
        size = 0
        for i in (index, *self.after(index)):
            other = self.split(i).tag
            # When someone wraps a line by hand, only its first part keeps the rank.
            if other != tag and (other or not held or held[-1][0] != i - 1):
                continue
            piece = flatten(self.split(i).text.replace("**", "").strip()).strip()
            if i > index and (not piece or starts_traceback(piece) or size > 1700):
                break
            if i > index and "%|" in piece:
                continue
            if held and piece[:1] in "'\"" and held[-1][1].endswith(piece[:1]):
                # Adjacent string literals, one per line.
                held[-1] = (held[-1][0], held[-1][1].rstrip(piece[:1] + " "))
                piece = piece[1:]
            held.append((i, piece[:_MESSAGE_CHARACTERS] if held else piece))
            size += len(held[-1][1]) + 1
        return held

    def end_traceback(self, index: int, tag: str) -> None:
        """Note that a line ends the traceback before it; later frames need a new head."""
        self._ends[tag] = index

    def traceback(self, index: int, tag: str) -> tuple[Frame, ...]:
        """The frames of the traceback that ends at a line, or of one that follows it."""
        frames = frames_in(from_one_line(self.split(index).text)) or self._frames_before(index, tag)
        if frames:
            return frames
        after: list[int] = []
        for i in self._same(self.after(index), tag):
            if starts_traceback(self.split(i).text):
                break
            after.append(i)
        return self._frames(after, 0)

    def unfinished_traceback(self) -> tuple[Frame, ...]:
        """The frames of the last traceback of the text, if no exception's own line ends it.

        Someone who posts a traceback in part leaves out the end.
        """
        shown = range(self.end - 1, max(self.start, self.end - _BEHIND_LATER * 4) - 1, -1)
        last = next((i for i in shown if _RE["frame_like"].search(self.split(i).text)), None)
        if last is None:
            return ()
        tag = self.split(last).tag
        held: list[int] = []
        gap = 0
        for i in range(last, shown[-1] - 1, -1):
            text = self.split(i).text
            if self.split(i).tag != tag or starts_traceback(text) or gap > _GAP // 4:
                if self.split(i).tag == tag:
                    break
                continue
            gap = 0 if _RE["frame_like"].search(text) else gap + 1
            held.append(i)
        after = list(self._same(range(last + 1, self.end), tag))
        if any(EXCEPTION.match(self.split(i).text) for i in after):
            return ()
        return self._frames([*held[::-1], *after[:2]], 0)

    def _frames_before(self, index: int, tag: str) -> tuple[Frame, ...]:
        width = self._width(index)
        fresh = self._walked < _MOST_WALKED
        head = self._open_head(index, tag) if fresh else None
        first = max(self.start, index - (_BEHIND if fresh else _BEHIND_LATER))
        held: list[int] = []
        seen, gap = False, 0
        for i in range(index - 1, first - 1, -1):
            self._walked += 1
            told = self.split(i).tag == tag
            if told or self._goes_on(i, tag, width):
                held.append(i)
            if not told:
                continue
            text = self.split(i).text
            if starts_traceback(text):
                break
            if _RE["frame_like"].search(text):
                seen, gap = True, 0
                continue
            gap += 1
            # With a head above, many lines with values of variables may separate frames.
            if head is None and (gap > _GAP or (seen and EXCEPTION.match(text) and gap > 1)):
                break
        return self._frames(held[::-1], width)

    def _width(self, index: int) -> int:
        """The width at which the line of a message was wrapped; 0 if too long or too short."""
        width = len(self.line(index).text)
        return width if _NARROWEST <= width <= _WIDEST else 0

    def _goes_on(self, index: int, tag: str, width: int) -> bool:
        """Whether a line without a tag continues a wrapped line that has this tag."""
        if not width or self.split(index).tag or index <= self.start:
            return False
        full = len(self.line(index - 1).text) == width
        return full and self.split(index - 1).tag == tag

    def _frames(self, held: list[int], width: int) -> tuple[Frame, ...]:
        """The frames in lines; `width` is where they were wrapped, unless a line is wider."""
        widths = [len(self.line(i).text) for i in held]
        cut = width if max(widths, default=0) == width else 0
        broken = [bool(cut) and most == cut for most in widths]
        after = (False, *broken)
        texts = [self._text(i, whole) for i, whole in zip(held, after, strict=False)]
        return frames_in(rejoined(texts, broken))

    def _text(self, index: int, whole: bool) -> str:
        """The text of a line; if `whole` and the line has no tag, with its leading spaces."""
        split = self.split(index)
        return self.line(index).text if whole and not split.tag else split.text

    def _open_head(self, index: int, tag: str) -> int | None:
        """The head of a traceback before a line, if no exception has ended it yet."""
        above = (i for i in reversed(self._heads) if i < index and self.split(i).tag == tag)
        head = next((i for i in above if starts_traceback(self.split(i).text)), None)
        if head is None or head <= self._ends.get(tag, -1):
            return None
        self._walked += index - head
        for i in self._same(range(head + 1, index), tag):
            if EXCEPTION.match(self.split(i).text):
                self.end_traceback(i, tag)
                return None
        return head

    def _same(self, indices: Iterable[int], tag: str) -> Iterator[int]:
        return (i for i in indices if self.split(i).tag == tag)


def _joined(held: list[tuple[int, str]], tight: set[int] | None) -> Reading:
    """The lines joined into one, with a space between them except after those in `tight`.

    Two numbers never stand side by side in a message, so digits at the end of a line and at the
    start of the next one are parts of one number.
    """
    flat = ""
    ends: list[tuple[int, int]] = []
    for index, piece in held:
        in_number = _RE["digit_last"].search(flat[-24:]) and _RE["digit_first"].match(piece)
        gap = "" if not ends or (tight and ends[-1][0] in tight) or in_number else " "
        flat = f"{flat}{gap}{piece}"
        ends.append((index, len(flat)))
    return Reading(flat, tuple(ends))
