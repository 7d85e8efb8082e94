"""Line ends and the byte order mark of a file, which a change of its text leaves as they are."""

from __future__ import annotations

import difflib
import re
from codecs import BOM_UTF8
from collections import Counter

_END = re.compile(r"\r\n|\r|\n")


def plain_text(content: bytes) -> str:
    """The text of a file in UTF-8, each of its lines ended by a line feed."""
    return _END.sub("\n", content.decode("utf-8-sig"))


def with_line_ends(content: bytes, text: str) -> bytes:
    r"""A changed `plain_text` as a file again. Lines that stay keep their ends, such as `\r\n`;
    new ones get the most frequent.
    """
    ends: list[str] = _END.findall(content.decode("utf-8-sig"))
    usual = Counter(ends).most_common(1)[0][0] if ends else "\n"
    before, after = plain_text(content).split("\n"), text.split("\n")
    chosen = [usual] * (len(after) - 1)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for start, at, size in matcher.get_matching_blocks():
        for place in range(min(size, len(ends) - start, len(chosen) - at)):
            chosen[at + place] = ends[start + place]
    joined = "".join(map("".join, zip(after, [*chosen, ""], strict=True)))
    return (BOM_UTF8 if content.startswith(BOM_UTF8) else b"") + joined.encode()
