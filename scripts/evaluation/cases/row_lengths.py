"""How long the batches of a published run were, where they were not all of one length.

A row says so in its note: samples were not packed, and a batch was as long as its own longest. How
the lengths are spread is read from the row's source where that is known; elsewhere any length up to
the row's is as likely as any other.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NAME = "rows of differing length"
_TOLD = re.compile(r"\bunpacked\b|padded to (?:its own )?longest|longer samples are dropped")
_SWIFT = (
    "github modelscope/ms-swift @97e4d198b, which published the runs: docs/source/LLM tells of "
    "cls-fudan-news-zh 4,959 samples, 3234.4 +- 2547.5 tokens, min 91; test_memory_time/"
    "run_single.py takes 1,000 above max_length 2048; llm/utils delete longer ones and pad a "
    "batch to its longest"
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """The tokens of a run's samples, none above `longest`, and where that was read.

    `samples` is how many there were before those above `longest` were dropped. None: not told.
    """

    longest: int
    source: str
    shortest: int = 1
    mean: float | None = None
    deviation: float | None = None
    samples: int | None = None

    def drawn(self, seed: int) -> Iterator[int]:
        """Lengths of the samples that were kept, in a random order."""
        chance = random.Random(seed)
        for _ in itertools.count() if self.samples is None else range(self.samples):
            length = self._length(chance)
            if length <= self.longest:
                yield length

    def batches(self, size: int, seed: int) -> Iterator[int]:
        """Lengths of batches of `size` samples, each as long as its longest."""
        samples = self.drawn(seed)
        while batch := list(itertools.islice(samples, size)):
            yield max(batch)

    def _length(self, chance: random.Random) -> int:
        """By a gamma distribution above the shortest; up to the longest where none is told.

        Of the usual two with a long tail, its longest of 4,959 samples is the nearer to that of
        ms-swift's page (19,548 tokens): some 21,700, where a log-normal one has some 32,000.
        """
        if self.mean is None or self.deviation is None:
            return chance.randint(self.shortest, self.longest)
        above = self.mean - self.shortest
        scale = self.deviation**2 / above
        return self.shortest + round(chance.gammavariate(above / scale, scale))


def lengths_of(row: Mapping[str, Any]) -> Lengths | None:
    """None where all batches of a row have its length."""
    if not _TOLD.search(str(row.get("note"))):
        return None
    longest = int(row["seq_len"])
    if "ms-swift" in str(row.get("source")):
        samples = 4959 if longest <= 2048 else 1000
        return Lengths(longest, _SWIFT, 91, 3234.4, 2547.5, samples)
    return Lengths(longest, "the row's note; nothing tells how the lengths are spread")
