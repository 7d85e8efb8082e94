"""The time for the user's own data: steps as the Trainer counts them, tokens, padding, packing."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from analysis_make import timing

from oomdoctor.analysis.dataset_distribution import Tally
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.analysis.speed.training_time import training_data, training_time
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.dataset import LengthsRequest, TrainingData, TrainingRequest

CONFIG = TrainConfig(sequence_length=512, micro_batch_size=2, effective_batch_size=8)
TIMES = timing(0.5, 0.1, 0.02)


def counted(*lengths: int):
    tally = Tally()
    for row, tokens in enumerate(lengths, 1):
        tally.add(row, tokens, "text")
    return tally.counted("rows.jsonl", "m", approximate=False, elapsed_s=0.1)


@pytest.mark.parametrize(
    ("rows", "epochs", "steps"),
    [(800, 1, 100), (800, 3, 300), (801, 3, 303), (1, 1, 1), (1, 10, 10), (801, 0.5, 51)],
)
def test_steps_as_the_trainer_counts_them(rows, epochs, steps):
    assert training_time(TrainingData(rows, epochs), CONFIG, TIMES).steps == steps


def test_full_rows_take_as_long_as_the_speed_says():
    found = training_time(TrainingData(800, 3), CONFIG, TIMES)
    assert found.tokens == 800 * 3 * 512
    assert found.total_s == pytest.approx(found.tokens / tokens_per_s(TIMES, CONFIG))
    assert 0 < found.total_s_spread <= 0.02


def test_the_last_step_of_an_epoch_does_only_the_rows_that_are_left():
    found = training_time(TrainingData(9, 2), CONFIG, TIMES)
    assert found.steps == 4
    assert found.total_s == pytest.approx(2 * 5 * 0.5 + 4 * 0.1)


def test_without_a_speed_there_are_steps_but_no_time():
    found = training_time(TrainingData(800, 1), CONFIG, None)
    assert (found.steps, found.total_s, found.total_s_spread) == (100, None, None)


def test_a_file_counts_the_rows_unless_it_is_a_sample():
    file = LengthsRequest("rows.jsonl")
    data = training_data(TrainingRequest(None, 2.0), file, counted(100, 300))
    assert (data.rows, data.epochs, data.tokens_per_row) == (2, 2.0, 200)
    sample = training_data(TrainingRequest(1000, 1.0), file, counted(100, 300))
    assert (sample.rows, sample.tokens_per_row) == (1000, 200)
    assert training_data(None, file, counted(100)).epochs == 1
    assert training_data(None, None, None) is None
    assert training_data(TrainingRequest(7), None, None) == TrainingData(7, 1.0)


def test_one_row_a_micro_batch_has_no_padding():
    lengths = [random.Random(3).randint(1, 512) for _ in range(4000)]
    data = training_data(None, None, counted(*lengths))
    alone = TrainConfig(sequence_length=512, micro_batch_size=1, effective_batch_size=8)
    found = training_time(data, alone, TIMES)
    assert found.tokens == pytest.approx(sum(lengths), rel=1e-6)


@pytest.mark.parametrize("micro", [2, 8, 32])
def test_padding_is_what_random_micro_batches_have(micro):
    draw = random.Random(5)
    lengths = [min(2048, int(draw.lognormvariate(5.5, 0.8)) + 1) for _ in range(20_000)]
    config = TrainConfig(
        sequence_length=max(lengths), micro_batch_size=micro, effective_batch_size=32
    )
    found = training_time(training_data(None, None, counted(*lengths)), config, TIMES)
    draw.shuffle(lengths)
    batches = [lengths[i : i + micro] for i in range(0, len(lengths), micro)]
    padded = sum(max(batch) * len(batch) for batch in batches)
    assert found.tokens == pytest.approx(padded, rel=0.05)
    assert statistics.fmean(lengths) * len(lengths) < found.tokens < max(lengths) * len(lengths)


def test_short_rows_save_no_time_where_the_host_is_the_limit():
    data = training_data(None, None, counted(*[128] * 800))
    device, host = (replace(TIMES, limited_by=limit) for limit in ("device", "host"))
    full = training_time(TrainingData(800, 1), CONFIG, TIMES).total_s
    assert training_time(data, CONFIG, host).total_s == pytest.approx(full)
    assert training_time(data, CONFIG, device).total_s == pytest.approx(100 * 4 * 0.125 + 10)


def test_rows_end_at_the_positions_of_the_model():
    short = TrainConfig(sequence_length=256, micro_batch_size=4, effective_batch_size=4)
    found = training_time(training_data(None, None, counted(4096, 4096, 4096)), short, TIMES)
    assert found.tokens == pytest.approx(3 * 256)


def test_packed_rows_fill_every_sequence():
    file = LengthsRequest("rows.jsonl", packed_tokens=512)
    data = training_data(TrainingRequest(None, 2.0), file, counted(*[100] * 1000))
    found = training_time(data, CONFIG, TIMES)
    sequences = 196  # 100,000 tokens in sequences of 512
    assert found.tokens == 2 * sequences * 512
    assert found.steps == 2 * 25
    assert found.total_s == pytest.approx(2 * (98 * 0.5 + 25 * 0.1))
