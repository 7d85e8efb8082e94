"""The lengths of a data set's rows: what is asked, what a worker counts, what a plan answers.

Lengths are tokens, sizes bytes, row numbers count from 1. Field names are public JSON keys, except
those of `CountedRows`, which stays between worker and parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ShapeName = Literal["longest", "p95", "packed"]


@dataclass(frozen=True, slots=True)
class LengthsRequest:
    """The file whose rows are counted.

    `tokenizer` is a folder, a hub id, or `bytes/4` for an approximation; None means the model's
    own. `text_field` is the field with the text; None looks for the usual ones row by row.
    `packed_tokens` is the length that rows are packed to, None where it follows from the lengths.
    """

    file: str
    tokenizer: str | None = None
    text_field: str | None = None
    packed_tokens: int | None = None

    def decides(self) -> ShapeName:
        """The shape of the rows that the results are about: packed ones if a length was given."""
        return "longest" if self.packed_tokens is None else "packed"


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """How much the user trains: `rows` is None where a data file says it."""

    rows: int | None
    epochs: float = 1.0


@dataclass(frozen=True, slots=True)
class LengthBin:
    """How many rows have at most `up_to_tokens`, and more than the bin before."""

    up_to_tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The user's rows and how often they are trained on; lengths are known from a data file.

    `tokens_per_row` is the mean. `packed_tokens` is the length that rows are packed to.
    """

    rows: int
    epochs: float
    tokens_per_row: float | None = None
    lengths: tuple[LengthBin, ...] = ()
    packed_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """The user's own training with a configuration.

    `steps` are optimizer steps, `tokens` what the model processes with padding. `total_s` is None
    without a speed, `total_s_spread` is its relative uncertainty.
    """

    rows: int
    epochs: float
    steps: int
    tokens: int
    total_s: float | None
    total_s_spread: float | None


@dataclass(frozen=True, slots=True)
class RowLength:
    """The tokens of one row; in a file of lines, its number is the number of the line."""

    row: int
    tokens: int


@dataclass(frozen=True, slots=True)
class UnreadRow:
    """A row without a length: no text was found in it, or it could not be read at all."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """How long the rows of a file are.

    `approximate` says that no tokenizer counted. `sources` are the rows by where their text came
    from. Percentiles are by nearest rank. `unread` are the first of the `unread_rows` rows that
    could not be counted.
    """

    file: str
    tokenizer: str
    approximate: bool
    rows: int
    tokens: int
    longest: RowLength
    longest_rows: tuple[RowLength, ...]
    p50: int
    p90: int
    p95: int
    p99: int
    histogram: tuple[LengthBin, ...]
    sources: Mapping[str, int]
    unread_rows: int
    unread: tuple[UnreadRow, ...]
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """Rows of nearly the same length: how many, and the first of them."""

    up_to_tokens: int
    rows: int
    first_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountedRows:
    """What a worker counted: the distribution, and buckets fine enough to ask it anything."""

    distribution: LengthDistribution
    buckets: tuple[LengthBucket, ...]


@dataclass(frozen=True, slots=True)
class LengthShape:
    """A row length that batches come in: `longest` and `p95` are padded, `packed` is filled up."""

    name: ShapeName
    tokens: int


@dataclass(frozen=True, slots=True)
class LengthPeak:
    """A configuration at one of the shapes: the micro-batch size taken, its peak, whether it fits.

    Where nothing fits it is the least that was tried; None where nothing was predicted.
    """

    name: ShapeName
    tokens: int
    micro_batch_size: int | None
    peak_device_bytes: int | None
    fits: bool | None


@dataclass(frozen=True, slots=True)
class LengthLine:
    """A configuration on a card at every shape."""

    card: str
    key: str
    label: str
    peaks: tuple[LengthPeak, ...]


@dataclass(frozen=True, slots=True)
class RowsAbove:
    """How many rows are longer than some length: their number, share, and the first of them."""

    rows: int
    share: float
    first_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The longest row that was predicted to fit a configuration at a micro-batch size.

    A multiple of 128 tokens, 0 where not even that many fit, or the longest row itself.
    """

    card: str
    key: str
    label: str
    micro_batch_size: int
    tokens: int
    above: RowsAbove


@dataclass(frozen=True, slots=True)
class LengthsAnswer:
    """What the lengths of a data set mean for a ladder.

    `shapes`, `lines` and `limits` are of `plan`; `probe` measures at the longest row. `verdict` is
    the answer in sentences.
    """

    distribution: LengthDistribution
    shapes: tuple[LengthShape, ...]
    lines: tuple[LengthLine, ...]
    limits: tuple[LengthLimit, ...]
    verdict: tuple[str, ...]
