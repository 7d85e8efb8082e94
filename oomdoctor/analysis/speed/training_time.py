"""How long the user's own training takes with a rung: steps, tokens and seconds.

Steps are counted as `transformers.Trainer` does: the last batch of an epoch may be smaller, and the
number of epochs may be a fraction. Rows of unknown lengths count as full sequences. Rows of known
lengths are padded to the longest row of their micro-batch, which is drawn at random; a shorter
micro-batch takes less time in proportion, unless the host limits the speed. Packed rows fill every
sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from oomdoctor.analysis.speed.throughput import tokens_per_s_spread
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.dataset import (
    CountedRows,
    LengthBin,
    LengthsRequest,
    TrainingData,
    TrainingRequest,
    TrainingTime,
)
from oomdoctor.records.job.measurement import Timing


def training_data(
    asked: TrainingRequest | None, lengths: LengthsRequest | None, counted: CountedRows | None
) -> TrainingData | None:
    """The user's data, from --rows and --epochs and the counted file; None if neither is known.

    --rows beside a file means that the file is a sample of that many rows.
    """
    epochs = asked.epochs if asked is not None else 1.0
    rows = asked.rows if asked is not None else None
    if counted is None:
        return None if rows is None else TrainingData(rows, epochs)
    counts = counted.distribution
    packed = lengths.packed_tokens if lengths is not None else None
    return TrainingData(
        rows=counts.rows if rows is None else rows,
        epochs=epochs,
        tokens_per_row=counts.tokens / counts.rows,
        lengths=tuple(LengthBin(b.up_to_tokens, b.rows) for b in counted.buckets),
        packed_tokens=packed,
    )


def training_time(data: TrainingData, config: TrainConfig, timing: Timing | None) -> TrainingTime:
    """Steps, tokens and seconds of the whole training; the seconds are None without times.

    `config` has the micro-batch size and the sequence length that `timing` belongs to. Tokens are
    those that the model processes, padding included.
    """
    micro, length = config.micro_batch(), config.sequence_length
    sequences, each = _sequences(data, micro, length)
    steps = math.ceil(math.ceil(sequences / config.effective_batch_size) * data.epochs)
    micro_steps = math.ceil(math.ceil(sequences / micro) * data.epochs)
    tokens = round(sequences * each * data.epochs)
    seconds = None
    if timing is not None:
        # A host that cannot keep up issues as many operators for short rows as for long ones.
        share = 1.0 if timing.limited_by == "host" else each / length
        seconds = micro_steps * timing.micro_step_s * share + steps * timing.optimizer_step_s
    return TrainingTime(
        rows=data.rows,
        epochs=data.epochs,
        steps=steps,
        tokens=tokens,
        total_s=seconds,
        total_s_spread=None if timing is None else tokens_per_s_spread(timing, config),
    )


def _sequences(data: TrainingData, micro: int, length: int) -> tuple[int, float]:
    """How many sequences an epoch has, and the tokens of one on average, with padding."""
    if data.tokens_per_row is None:
        return data.rows, length
    if data.packed_tokens is not None:
        return math.ceil(data.rows * data.tokens_per_row / data.packed_tokens), data.packed_tokens
    return data.rows, padded_length(data.lengths, data.tokens_per_row, micro, length)


def padded_length(lengths: Iterable[LengthBin], mean: float, micro: int, longest: int) -> float:
    """The expected longest of `micro` rows that are drawn at random; rows end at `longest` tokens.

    Lengths are known up to the next multiple of 128. The mean is known exactly and corrects them,
    so a micro-batch of one row has no padding.
    """
    bins = sorted(lengths, key=lambda bucket: bucket.up_to_tokens)
    total = sum(bucket.rows for bucket in bins)
    rounding = sum(bucket.up_to_tokens * bucket.rows for bucket in bins) / total - mean
    expected, seen, below = 0.0, 0, 0.0
    for bucket in bins:
        seen += bucket.rows
        share = (seen / total) ** micro  # the chance that no row is longer
        expected += min(bucket.up_to_tokens, longest + rounding) * (share - below)
        below = share
    return expected - rounding
