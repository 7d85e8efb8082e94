"""Turns a log of any size and encoding into clean lines, in bounded memory.

Chunks of bytes are cut into blocks. Blocks at the start, at the end, and around words of failure
are decoded and cleaned in full. All others are only sampled for steps and memory use, so a healthy
gigabyte passes at the speed of a word search.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Iterator

from oomdoctor.explain.reading.lines.clean import Line, clean

BLOCK = 1 << 16
_HEAD_BLOCKS = 24  # 1.5 MiB in which a log prints its settings
_TAIL_BLOCKS = 12  # and the end, which says how the run ended
_TOLD_LIMIT = 128  # blocks in between, 8 MiB; after that only samples until the end

# A failure in the middle of a log has a traceback or one of these words, and a restart prints its
# settings; the end of a log is read in full anyway. bytes.rfind searches gigabytes per second for
# each word, more than twice as fast as bytes.find and 20 times as fast as a regular expression.
NEEDLES: tuple[bytes, ...] = (
    b"Traceback (most",
    b"ut of memory",
    b"Out Of Memory",
    b"oom-kill",
    b"oom_kill",
    b"OOMKilled",
    b" Killed",
    b"per_device_train_batch_size",
)
# Words in lines that report a step or memory use.
_PROGRESS = (b"tep", b"iB", b"GB", b"loss", b"%|")
_SAMPLE_REACH = 1024  # bytes from such a word to either end of its line


def lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The lines of a log that matter, in order; the module says what is left out."""
    number = 1
    for block, told in _judged(_blocks(_utf8(chunks))):
        counted = 0
        for start, part in [(0, block)] if told else _samples(block):
            number += block.count(b"\n", counted, start)
            counted = start
            yield from clean(part.decode("utf-8", "replace"), number)
        number += block.count(b"\n", counted)


def _utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text as UTF-8, without byte order mark and NUL."""
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
    # UTF-16 of Latin text has a zero in every second byte; a torn log has zeros everywhere.
    head = first[:200]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if len(head) >= 4 and max(even, odd) >= len(head) * 0.4 and min(even, odd) < len(head) * 0.1:
        return ("utf-16-le" if odd > even else "utf-16-be"), 0
    return None, 0


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of about BLOCK bytes that end with a line, or with a space if the line is longer."""
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
                near = start + BLOCK - 4096  # no tiny blocks: a word may span two blocks, not three
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
    """Each block, and whether to read it in full or only sample it."""
    waiting: deque[tuple[bytes, bool]] = deque()
    seen = told = 0
    before = False
    for block in blocks:
        hit = any(block.rfind(needle) >= 0 for needle in NEEDLES)
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


def _samples(block: bytes) -> list[tuple[int, bytes]]:
    """The first line of a block and the last ones that show progress, with their positions."""
    first = block.find(b"\n", 0, 2 * _SAMPLE_REACH) + 1
    places = (block.rfind(word) for word in _PROGRESS)
    spans = {_line_around(block, place) for place in places if place >= first}
    return [(0, block[:first]), *((start, block[start:end]) for start, end in sorted(spans))]


def _line_around(block: bytes, place: int) -> tuple[int, int]:
    """Where the line, or the state of a progress bar, at this position starts and ends."""
    low, high = max(0, place - _SAMPLE_REACH), place + _SAMPLE_REACH
    start = max(block.rfind(mark, low, place) for mark in (b"\n", b"\r")) + 1
    ends = [end for mark in (b"\n", b"\r") if (end := block.find(mark, place, high)) >= 0]
    return start or low, min(ends, default=high)
