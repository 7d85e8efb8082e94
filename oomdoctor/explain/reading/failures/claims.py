"""What people write about a failure without pasting its message: a title, or a sentence.

It counts only where the text has no message of a memory failure. A line of a log, source code, and
sentences that deny or only advise are no claims.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.records.report.diagnosis import Resource

_RE = patterns("claims")
_FEWEST_WORDS = 4
_KINDS: tuple[tuple[Resource, str, re.Pattern[str]], ...] = (
    ("shm", "dataloader_shm", _RE["shm"]),
    ("host", "host_oom_killer", _RE["host"]),
    ("gpu", "cuda_caching_allocator", _RE["gpu"]),
)


class Claim(NamedTuple):
    """What ran out, as a line says, the dialect that stands for it, and where the words are.

    `vague`: the words fit host memory as well.
    """

    resource: Resource
    dialect: str
    start: int
    end: int
    vague: bool = False


def may_claim(text: str) -> bool:
    """Whether a line has a word without which it cannot be a claim."""
    return _RE["may"].search(text) is not None


def is_title(text: str) -> bool:
    """Whether a line is marked as a heading."""
    return _RE["title"].match(text) is not None


def claim_in(text: str, *, title: bool) -> Claim | None:
    """The claim that memory ran out in a title or in a sentence that a person wrote."""
    if not title and not _by_a_person(text):
        return None
    for resource, dialect, words in _KINDS:
        match = words.search(text)
        if match is not None and _RE["denied"].search(text[: match.start()][-80:]) is None:
            vague = resource == "gpu" and _RE["of_device"].search(text) is None
            return Claim(resource, dialect, match.start(), match.end(), vague)
    match = _RE["loader"].search(text) if title else None
    return None if match is None else Claim("host", "dataloader_worker", *match.span())


def claiming(text: str) -> str:
    """The sentence of a line that claims a failure; all of the line if none alone does."""
    sentences = _RE["sentence_end"].split(text)
    return next((part for part in sentences if claim_in(part, title=True)), text)


def _by_a_person(text: str) -> bool:
    if _RE["log"].search(text) is not None or _RE["person"].search(text) is None:
        return False
    return len(text.split()) >= _FEWEST_WORDS or not text.isascii()
