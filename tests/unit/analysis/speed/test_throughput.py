"""Rates and utilisation, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from analysis_make import COUNTS, MODEL_CONFIG, gpu_facts, timing

from oomdoctor.analysis.speed.throughput import (
    CountedModel,
    flops_per_token,
    mfu,
    peak_flops,
    tokens_per_s,
    tokens_per_s_spread,
)
from oomdoctor.records.configuration.config import TrainConfig

CONFIG = TrainConfig(micro_batch_size=4, effective_batch_size=16, sequence_length=1000)
# No input embeddings, but the head: 801M + 50,000 x 2,000.
MULTIPLIED = 801_000_000 + 100_000_000
SCORES = 20 * 20 * 100 * 1000


def flops(config=CONFIG, counts=COUNTS, trainable=None, model_config=MODEL_CONFIG, task=None):
    return flops_per_token(config, CountedModel(counts, trainable, model_config, task))


def test_tokens_per_second_at_the_effective_batch():
    assert tokens_per_s(timing(0.5, 0.1), CONFIG) == pytest.approx(16_000 / 2.1)


def test_the_spread_of_both_parts_is_carried_over():
    times = replace(timing(0.5, 1.0, 0.02), optimizer_step_spread=0.06)
    expected = math.hypot(4 * 0.5 * 0.02, 1.0 * 0.06) / 3.0
    assert tokens_per_s_spread(times, CONFIG) == pytest.approx(expected)
    assert tokens_per_s_spread(timing(spread=None), CONFIG) is None


def test_full_training_costs_six_flops_a_parameter_and_the_scores():
    assert flops() == 6 * MULTIPLIED + 12 * SCORES


def test_tokens_of_packed_documents_attend_within_their_document():
    packed = replace(CONFIG, packing="packed", document_length=250)
    assert flops(packed) == 6 * MULTIPLIED + 12 * SCORES / 4
    assert flops(replace(packed, document_length=5000)) == flops()


def test_a_pair_has_two_sequences_and_a_reference_pass():
    dpo = replace(CONFIG, objective="dpo", completion_length=400)
    assert tokens_per_s(timing(0.5, 0.1), dpo) == 2 * tokens_per_s(timing(0.5, 0.1), CONFIG)
    multiplied = 801_000_000 + 0.4 * 100_000_000
    assert flops(dpo) == pytest.approx(8 * multiplied + 16 * SCORES)
    without = replace(dpo, reference="precomputed")
    assert flops(without) == pytest.approx(6 * multiplied + 12 * SCORES)
    assert flops(replace(CONFIG, objective="reward")) == 6 * 801_000_000 + 12 * SCORES


def test_a_tied_head_is_still_a_product():
    tied = replace(COUNTS, total=901_000_000, embedding=100_000_000)
    assert flops(counts=tied) == flops()


def test_a_frozen_base_costs_four_and_its_adapters_six():
    lora = replace(CONFIG, method="lora")
    assert flops(lora, trainable=5_000_000) == 4 * MULTIPLIED + 6 * 5_000_000 + 12 * SCORES
    assert flops(lora) is None


def test_frozen_layers_cost_a_forward_pass():
    frozen = replace(CONFIG, frozen_layers=2)
    idle = COUNTS.embedding + 300_000_000
    trained = MULTIPLIED - idle
    told = flops(frozen, trainable=COUNTS.total - idle)
    assert told == 6 * trained + 2 * idle + 4 * SCORES
    assert flops(frozen) is None


def test_only_active_experts_work():
    counts = replace(COUNTS, routed_experts=600_000_000, experts=8, experts_per_token=2)
    assert flops(counts=counts) == 6 * (MULTIPLIED - 450_000_000) + 12 * SCORES


def test_a_classifier_has_no_vocabulary_head():
    assert flops(task="sequence-classification") == 6 * 801_000_000 + 12 * SCORES


def test_windows_shorten_the_scores_of_the_layers_that_have_one():
    kinds = ["sliding_attention"] * 15 + ["full_attention"] * 3 + ["linear_attention"] * 2
    windowed = {**MODEL_CONFIG, "sliding_window": 100, "layer_types": kinds}
    assert flops(model_config=windowed) == 6 * MULTIPLIED + 12 * 2000 * (15 * 100 + 3 * 1000)
    # Which layers have the window is not told: the attention term is left out, not guessed.
    assert flops(model_config={**MODEL_CONFIG, "sliding_window": 100}) == 6 * MULTIPLIED
    unused = {**MODEL_CONFIG, "sliding_window": 100, "use_sliding_window": False}
    assert flops(model_config=unused) == flops()
    assert flops(model_config={**MODEL_CONFIG, "sliding_window": 4096}) == flops()


def test_unknown_heads_leave_the_attention_term_out():
    assert flops(model_config={"vocab_size": 50_000, "hidden_size": 2000}) == 6 * MULTIPLIED


@pytest.mark.parametrize(
    ("model_config", "task"),
    [
        ({**MODEL_CONFIG, "is_encoder_decoder": True}, None),
        ({**MODEL_CONFIG, "vision_config": {}}, None),
        (MODEL_CONFIG, "seq2seq-lm"),
        (MODEL_CONFIG, "image-classification"),
        ({"hidden_size": 2000}, "causal-lm"),
    ],
)
def test_no_figure_where_the_formula_does_not_hold(model_config, task):
    assert flops(model_config=model_config, task=task) is None


def test_utilisation_is_flops_times_rate_over_the_peak():
    told = CountedModel(COUNTS, None, MODEL_CONFIG, None)
    assert mfu(1e5, CONFIG, told, 1e15) == pytest.approx(flops() * 1e5 / 1e15)
    assert mfu(1e5, CONFIG, told, None) is None
    assert mfu(1e5, CONFIG, None, 1e15) is None


def test_the_peak_is_that_of_the_type_that_is_multiplied():
    facts = gpu_facts(bf16_flops=4.0, fp16_flops=3.0, fp32_flops=1.0, tf32_flops=2.0)
    assert peak_flops(TrainConfig(), facts) == 4.0
    assert peak_flops(TrainConfig(weights_dtype="float32"), facts) == 1.0
    amp = TrainConfig(weights_dtype="float32", autocast_dtype="float16")
    assert peak_flops(amp, facts) == 3.0
    assert peak_flops(amp, gpu_facts()) is None
    assert peak_flops(amp, None) is None


def test_the_peak_of_float32_in_tf32_is_that_of_the_tensor_cores():
    plain = TrainConfig(weights_dtype="float32", tf32=True)
    ampere = gpu_facts(bf16_flops=4.0, fp16_flops=3.0, fp32_flops=1.0, tf32_flops=2.0)
    assert peak_flops(plain, ampere) == 2.0
    assert peak_flops(replace(plain, autocast_dtype="bfloat16"), ampere) == 4.0
    assert peak_flops(TrainConfig(tf32=True), ampere) == 4.0
    # A card that has none computes in float32; if only the rate is unknown, so is the peak.
    unknown = replace(ampere, tf32_flops=None)
    assert peak_flops(plain, replace(unknown, compute_capability="7.5")) == 1.0
    assert peak_flops(plain, replace(unknown, compute_capability="8.6")) is None
