"""What a card can do at most: shares by hand, and the bounds of a calibration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import COUNTS, MODEL_CONFIG, timing

from oomdoctor.analysis.speed.limits import MOST_OF_PEAK, bounded, calibration_share, peak_shares
from oomdoctor.analysis.speed.throughput import CountedModel
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.costs import Calibration
from oomdoctor.system.catalogue import find_gpu, gpus

H100 = find_gpu("NVIDIA H100 80GB HBM3")
CONFIG = TrainConfig(sequence_length=1000, micro_batch_size=2, effective_batch_size=4)
N = COUNTS.total - COUNTS.embedding + min(COUNTS.embedding, 50_000 * 2000)


def shares(config=CONFIG, *, micro=0.5, optimizer=0.1, gpu=H100, model=MODEL_CONFIG, task=None):
    counted = CountedModel(COUNTS, 10_000_000, model, task)
    return peak_shares(timing(micro, optimizer), config, gpu, counted)


def test_the_shares_by_hand():
    found = shares()
    scores = 6 * 20 * 2000 * 1000  # a causal kernel skips half of PaLM's 12
    flops = (6 * N + scores) * 4 * 1000
    assert found.compute == pytest.approx(flops / 1.1 / H100.bf16_flops)
    # 2 micro-steps read 2 bytes twice; the update moves gradient, weight and two states of 2 bytes.
    moved = 2 * 2 * 2 * N + COUNTS.total * (2 + 4 + 8)
    assert found.bandwidth == pytest.approx(moved / 1.1 / H100.bandwidth_bytes_per_s)
    assert found.believable()


def test_a_clock_that_runs_too_fast_is_not_believed():
    slow = shares(micro=0.02, optimizer=0.01)
    fast = shares(micro=0.005, optimizer=0.001)
    assert slow.believable()
    assert not fast.believable()
    assert fast.highest() == (fast.compute, "arithmetic peak")


def test_an_optimizer_step_faster_than_the_memory_is_not_believed():
    tiny = replace(CONFIG, sequence_length=1)
    found = shares(tiny, micro=0.0005, optimizer=0.0005)
    assert found.compute < MOST_OF_PEAK < found.bandwidth
    assert found.highest()[1] == "memory bandwidth"
    assert not found.believable()


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, method="lora"),
        replace(CONFIG, method="qlora", quantization="nf4"),
        replace(CONFIG, optimizer="adamw_bnb_8bit"),
    ],
)
def test_lighter_training_implies_less(config):
    assert shares(config).bandwidth < shares().bandwidth


def test_what_is_offloaded_moves_elsewhere():
    assert shares(replace(CONFIG, offload="optimizer")).bandwidth is None


def test_what_is_unknown_is_believed():
    assert shares(task="seq2seq-lm", micro=1e-9).believable()
    unknown = replace(H100, bf16_flops=None, bandwidth_bytes_per_s=None)
    assert shares(gpu=unknown, micro=1e-9).believable()


def test_a_geforce_may_exceed_its_published_peak():
    card = find_gpu("RTX 5090")
    plain = replace(card, name="no row", compute_capability=None)
    assert shares(gpu=card).compute < shares(gpu=plain).compute


def test_tf32_may_be_on():
    plain = shares(replace(CONFIG, weights_dtype="float32"))
    assert plain.compute == pytest.approx(shares().compute * H100.bf16_flops / H100.tf32_flops)


@pytest.mark.parametrize("gpu", [gpu for gpu in gpus() if gpu.vendor == "NVIDIA"], ids=str)
def test_no_calibration_goes_beyond_the_card(gpu):
    assert calibration_share(Calibration(), gpu) <= 1
    fast = Calibration(0.2, 0.2, 0.2)
    assert calibration_share(bounded(fast, gpu), gpu) <= max(
        MOST_OF_PEAK + 1e-9, calibration_share(Calibration(), gpu)
    )
    slow = Calibration(2.0, 1.5, 0.5)
    assert bounded(slow, gpu) == slow
