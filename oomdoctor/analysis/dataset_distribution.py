"""Row lengths of a data set: the distribution, and the shapes of the batches.

A batch is padded to its longest row, so the batch with the longest row of all decides the peak.
Its shape is (micro-batch size, longest row), however short the other rows are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from oomdoctor.records.job.dataset import (
    CountedRows,
    LengthBin,
    LengthBucket,
    LengthDistribution,
    LengthShape,
    LengthsRequest,
    RowLength,
    RowsAbove,
    ShapeName,
    UnreadRow,
)

STEP_TOKENS = 128  # simulated lengths and buckets are multiples of it
_TOLD_ROWS = 10


class Tally:
    """Adds up row lengths in memory that does not grow with the number of rows.

    Invariant: every row that was added is in `_counts` or in `_unread_rows`. Of single rows it
    keeps the ten longest, the first ten of each bucket, and the first ten unread ones.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._longest: list[tuple[int, int]] = []  # a heap of (tokens, minus the row)
        self._first: dict[int, list[int]] = {}
        self._sources: Counter[str] = Counter()
        self._unread_rows = 0
        self._unread: list[UnreadRow] = []

    def add(self, row: int, tokens: int, source: str) -> None:
        """Count a row; `source` says where its text came from."""
        self._counts[tokens] += 1
        self._sources[source] += 1
        first = self._first.setdefault(rounded_up(tokens), [])
        if len(first) < _TOLD_ROWS:
            first.append(row)
        push = heapq.heappush if len(self._longest) < _TOLD_ROWS else heapq.heappushpop
        push(self._longest, (tokens, -row))

    def add_unread(self, row: int, reason: str) -> None:
        """Count a row that has no length."""
        self._unread_rows += 1
        if len(self._unread) < _TOLD_ROWS:
            self._unread.append(UnreadRow(row, reason))

    @property
    def rows(self) -> int:
        """The number of rows with a length."""
        return self._counts.total()

    @property
    def first_unread(self) -> UnreadRow | None:
        """The first row without a length."""
        return self._unread[0] if self._unread else None

    def counted(
        self, file: str, tokenizer: str, *, approximate: bool, elapsed_s: float
    ) -> CountedRows:
        """The result; at least one row must have a length."""
        longest = [RowLength(-row, tokens) for tokens, row in sorted(self._longest, reverse=True)]
        buckets = self._buckets()
        return CountedRows(
            LengthDistribution(
                file=file,
                tokenizer=tokenizer,
                approximate=approximate,
                rows=self.rows,
                tokens=sum(tokens * rows for tokens, rows in self._counts.items()),
                longest=longest[0],
                longest_rows=tuple(longest),
                p50=percentile(self._counts, 50),
                p90=percentile(self._counts, 90),
                p95=percentile(self._counts, 95),
                p99=percentile(self._counts, 99),
                histogram=histogram(buckets),
                sources=dict(self._sources),
                unread_rows=self._unread_rows,
                unread=tuple(self._unread),
                elapsed_s=elapsed_s,
            ),
            buckets,
        )

    def _buckets(self) -> tuple[LengthBucket, ...]:
        rows: Counter[int] = Counter()
        for tokens, count in self._counts.items():
            rows[rounded_up(tokens)] += count
        return tuple(LengthBucket(top, rows[top], tuple(self._first[top])) for top in sorted(rows))


def percentile(counts: Counter[int], percent: int) -> int:
    """The shortest length that at least `percent` of the rows do not exceed (nearest rank).

    Raises:
        ValueError: there are no rows.
    """
    rank, lengths = -(-percent * counts.total() // 100), sorted(counts)
    if not lengths:
        raise ValueError("there are no rows")
    seen = list(accumulate(counts[tokens] for tokens in lengths))
    return lengths[bisect_left(seen, rank)]


def histogram(buckets: Sequence[LengthBucket]) -> tuple[LengthBin, ...]:
    """Rows by length in bins that double from 128 tokens up to the longest row."""
    bins = []
    low, high = -1, STEP_TOKENS
    while low < buckets[-1].up_to_tokens:
        rows = sum(bucket.rows for bucket in buckets if low < bucket.up_to_tokens <= high)
        bins.append(LengthBin(high, rows))
        low, high = high, 2 * high
    return tuple(bins)


def rows_above(counted: CountedRows, tokens: int) -> RowsAbove:
    """The rows longer than `tokens`, a multiple of 128 or at least the longest row."""
    above = [bucket for bucket in counted.buckets if bucket.up_to_tokens > tokens]
    if tokens >= counted.distribution.longest.tokens:
        above = []
    rows = sum(bucket.rows for bucket in above)
    first = heapq.nsmallest(_TOLD_ROWS, (row for bucket in above for row in bucket.first_rows))
    return RowsAbove(rows, rows / counted.distribution.rows, tuple(first))


def shapes_of(
    counted: LengthDistribution, asked: LengthsRequest, limit: int | None
) -> tuple[LengthShape, ...]:
    """The row lengths of the batches; `limit` is the number of positions of the model."""
    packed = asked.packed_tokens or rounded_up(counted.p99)
    longest = counted.longest.tokens
    shapes: dict[ShapeName, int] = {"longest": longest, "p95": counted.p95, "packed": packed}
    most = max(shapes.values()) if limit is None else limit
    return tuple(LengthShape(name, min(tokens, most)) for name, tokens in shapes.items())


def rounded_up(tokens: int) -> int:
    """The next multiple of 128."""
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS
