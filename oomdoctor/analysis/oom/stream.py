"""A log of any size and kind, as clean lines, in bounded memory.

Chunks of bytes are cut into blocks. A block in which no word of any failure stands, and which is
neither at the start nor at the end nor beside one that has such a word, is only sampled: a healthy
gigabyte is passed at the speed of a search for words. What remains is decoded and cleaned: colours,
carriage returns, boxes of rich and tracebacks inside JSON. One line of any length is cut.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

BLOCK = 1 << 16
_HEAD_BLOCKS = 24  # 1.5 MiB in which a log tells its settings
_TAIL_BLOCKS = 12  # and the end, which tells how it went
_TOLD_LIMIT = 128  # blocks in between, 8 MiB; after that only samples until the end
_SAMPLE_LINES = 3
_LONG_LINE = 1 << 15

# A failure in the middle of a log has a traceback or one of these words; what ends a log is read
# in full anyway. bytes.find passes gigabytes a second for each, a regular expression of them does
# a tenth of that.
NEEDLES: tuple[bytes, ...] = (
    b"Traceback (most",
    b"ut of memory",
    b"Out Of Memory",
    b"oom-kill",
    b"oom_kill",
    b" Killed",
)


class Line(NamedTuple):
    """One clean line and its number in the log; pieces of one line share its number."""

    number: int
    text: str


def lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The lines of a log that matter, in order; see above for what is left out."""
    number = 1
    for block, told in _judged(_blocks(_utf8(chunks))):
        count = block.count(b"\n")
        shown = block if told else _sample(block)
        yield from _clean(shown.decode("utf-8", "replace"), number)
        number += count


def _utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """UTF-8 (or what passes for it) without byte order mark and NUL."""
    source = iter(chunks)
    first = b""
    for chunk in source:
        first += chunk
        if len(first) >= 4:
            break
    encoding, skip = _encoding(first)
    if encoding is None:
        yield first[skip:].translate(None, b"\0")
        for chunk in source:
            yield chunk.translate(None, b"\0") if b"\0" in chunk else chunk
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first[skip:]).encode("utf-8", "replace")
    for chunk in source:
        yield decoder.decode(chunk).replace("\0", "").encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


def _encoding(first: bytes) -> tuple[str | None, int]:
    if first.startswith(codecs.BOM_UTF8):
        return None, 3
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return ("utf-16-le" if first[0] == 0xFF else "utf-16-be"), 2
    head = first[:200]
    # Text in Latin letters has a zero in every second byte.
    if len(head) >= 4 and head.count(0) >= len(head) * 0.4:
        return ("utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"), 0
    return None, 0


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of about BLOCK bytes that end with a line, or where a line is longer, in a space."""
    pending: list[bytes] = []
    size = 0
    for chunk in chunks:
        pending.append(chunk)
        size += len(chunk)
        if size < BLOCK:
            continue
        data = b"".join(pending)
        start = 0
        while len(data) - start >= BLOCK:
            cut = data.rfind(b"\n", start, start + BLOCK) + 1
            if cut <= start:
                near = start + BLOCK - 4096  # no sliver: a word may span two blocks, not three
                cut = max(data.rfind(mark, near, start + BLOCK) for mark in (b"\r", b" ")) + 1
            if cut <= start:
                cut = start + BLOCK
            yield data[start:cut]
            start = cut
        pending = [data[start:]]
        size = len(data) - start
    if size:
        yield b"".join(pending)


def _judged(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each block with whether it is told in full or only sampled."""
    waiting: deque[tuple[bytes, bool]] = deque()
    seen = told = 0
    before = False
    for block in blocks:
        hit = any(needle in block for needle in NEEDLES)
        if not hit and waiting and not waiting[-1][0].endswith(b"\n"):
            seam = waiting[-1][0][-32:] + block[:32]
            hit = any(needle in seam for needle in NEEDLES)
        waiting.append((block, hit))
        if len(waiting) <= _TAIL_BLOCKS:
            continue
        seen += 1
        block, hit = waiting.popleft()
        full = seen <= _HEAD_BLOCKS
        if not full and (hit or before or waiting[0][1]) and told < _TOLD_LIMIT:
            full = True
            told += 1
        before = hit
        yield block, full
    for block, _ in waiting:
        yield block, True


def _sample(block: bytes) -> bytes:
    """The first lines of a block, for the steps and readings of a long run."""
    end = 0
    for _ in range(_SAMPLE_LINES):
        following = block.find(b"\n", end, end + 2048) + 1
        if not following:
            break
        end = following
    return block[:end]


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"  # titles, clipboard, links
    r"|\x1b[ -/]*[0-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BAR = re.compile(r"\d+%\|")
_BARS = "│┃║"
_LEFT_EDGES, _RIGHT_EDGES, _RULES = "╭╰┌└┏┗╔╚", "╮╯┐┘┓┛╗╝", "─━═"
_BOX_STARTS = _BARS + _LEFT_EDGES + " "
_BOX_PATH = re.compile(r"^(?:/|~/|[A-Za-z]:[\\/]|<|in )\S*$")
_BOX_PLACE = re.compile(r":\d+ in \S+$")
_JSON_LIMIT = 1 << 20


def _clean(text: str, number: int) -> Iterator[Line]:
    if _CONTROL.search(text):
        text = _ESCAPES.sub("", text)
    half = ""  # the first part of a path that a box wrapped
    raws = text.split("\n")
    if not raws[-1]:
        raws.pop()  # what stands after the last line's end is no line
    for raw in raws:
        line = raw[:-1] if raw.endswith("\r") else raw
        if not line:
            yield Line(number, "")
        elif line[0] in _BOX_STARTS and (boxed := _unboxed(line)) is not None:
            if half and not _BOX_PLACE.search(half):
                boxed, half = half + boxed, ""
            if _BOX_PATH.match(boxed) and not _BOX_PLACE.search(boxed) and len(boxed) < 1000:
                half = boxed
            else:
                half = ""
                yield Line(number, boxed)
        else:
            if half:
                yield Line(number, half)
                half = ""
            for piece in _pieces(line):
                yield Line(number, piece)
        number += 1
    if half:
        yield Line(number, half)


def _unboxed(line: str) -> str | None:
    """What stands inside the box that rich draws; None for a line that is no part of a box."""
    inner = line.strip()
    if len(inner) < 2:
        return None
    if inner[0] in _BARS and inner[-1] in _BARS:
        text = inner[1:-1].rstrip()
        return text[1:] if text.startswith(" ") else text
    if inner[0] in _LEFT_EDGES and inner[-1] in _RIGHT_EDGES and inner[1] in _RULES:
        return inner[1:-1].strip(_RULES).strip()
    return None


def _pieces(line: str) -> Iterator[str]:
    """A line without the states of progress bars that were overwritten, unescaped, cut to size."""
    if "\r" in line:
        parts = [part for part in line.split("\r") if part.strip()]
        last = len(parts) - 1
        for index, part in enumerate(parts):
            # A bar that another text follows on the same line is more than a bar.
            if index == last or len(part) > 300 or not _BAR.search(part):
                yield from _pieces(part)
        return
    if "\\n" in line and len(line) <= _JSON_LIMIT:
        unescaped = _unescaped(line)
        if unescaped is not None:
            for part in unescaped:
                yield from _cut(part)
            return
    yield from _cut(line)


def _cut(line: str) -> Iterator[str]:
    start = 0
    while len(line) - start > _LONG_LINE:
        end = line.rfind(" ", start, start + _LONG_LINE) + 1
        if end <= start:
            end = start + _LONG_LINE
        yield line[start:end]
        start = end
    yield line[start:] if start else line


_ESCAPED_TEXT = re.compile(r"\\n\s*File \\?\"|Traceback \(most recent|memory|Error")


def _unescaped(line: str) -> list[str] | None:
    """The lines inside a JSON record or a quoted string; None where it is an ordinary line."""
    stripped = line.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        try:
            record = json.loads(stripped)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            texts = list(_strings(record, 0))
            if any("\n" in text for text in texts):
                return [part for text in texts for part in text.split("\n")]
    if _ESCAPED_TEXT.search(line):
        text = line.replace("\\r", "").replace("\\n", "\n").replace('\\"', '"')
        return text.replace("\\t", "\t").rstrip('"}], ').split("\n")
    return None


def _strings(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < 6 and isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, int | float):
                yield f"{key}={item}"
            else:
                yield from _strings(item, depth + 1)
    elif depth < 6 and isinstance(value, list):
        for item in value:
            yield from _strings(item, depth + 1)
