"""Bytes a parameter beside what a simulation found."""

from __future__ import annotations

import pytest
from analysis_make import COUNTS, measurement, rung

from oomdoctor.analysis.memory.closed_form import weights_bytes
from oomdoctor.analysis.memory.formula import formula_view
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.records.job.simulation import PhasePeak

MILLION = 10**6


def view(trainable: int = COUNTS.total, **keys: object):
    parts = {"weights": 2000 * MILLION, "activations": 500 * MILLION}
    phases = (
        PhasePeak("first", "forward", 2100 * MILLION, {"weights": 2000 * MILLION}, ()),
        PhasePeak("steady", "backward", 2500 * MILLION, parts, ()),
    )
    measured = measurement(3000 * MILLION, trainable_parameters=trainable)
    return formula_view(rung(**keys).config, COUNTS, measured, phases)


def widths(found) -> dict[str, float | None]:
    return {term.name: term.bytes_per_parameter for term in found.terms if term.formula_bytes}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"weights_dtype": "float32"}, {"weights": 4, "gradients": 4, "optimizer states": 8}),
        ({"weights_dtype": "bfloat16"}, {"weights": 2, "gradients": 2, "optimizer states": 4}),
        ({"optimizer": "adamw_bnb_8bit"}, {"weights": 2, "gradients": 2, "optimizer states": 2}),
        ({"optimizer": "sgd"}, {"weights": 2, "gradients": 2}),
    ],
)
def test_full_training_by_the_textbook(keys, expected):
    found = view(**keys)
    assert widths(found) == expected
    assert found.formula_bytes == sum(expected.values()) * COUNTS.total


def test_adapters_are_trained_in_float32_and_the_base_has_no_states():
    found = view(trainable=10 * MILLION, method="lora")
    assert widths(found) == {"weights": 2, "adapters": 4, "gradients": 4, "optimizer states": 8}
    assert found.formula_bytes == 2 * COUNTS.total + 16 * 10 * MILLION


def test_four_bits_are_about_half_a_byte():
    found = view(trainable=MILLION, method="qlora", quantization="nf4")
    weights = widths(found)["weights"]
    assert weights == pytest.approx(0.8 * 0.516 + 0.2 * 4, rel=0.01)


def test_the_rule_of_thumb_is_held_against_the_peak():
    found = view()
    assert found.rule_bytes == 16 * COUNTS.total
    assert found.rule_error == pytest.approx(16_000 / 3000 - 1)
    assert any("bfloat16" in remark for remark in found.remarks)
    assert any("477 MiB" in remark and "activations" in remark for remark in found.remarks)
    assert any("backward of a later step" in remark for remark in found.remarks)


def test_float32_is_what_the_rule_is_made_for():
    assert not any("float32;" in remark for remark in view(weights_dtype="float32").remarks)


def test_what_is_simulated_stands_at_the_highest_moment():
    found = {term.name: term.simulated_bytes for term in view().terms}
    assert found["activations"] == 500 * MILLION
    assert found["gradients"] is None


@pytest.mark.parametrize("stack", [{"quantize_experts": True}, {"library": "unsloth"}])
def test_experts_in_4_bits_are_not_counted_as_whole(stack: dict[str, object]) -> None:
    counts = ParameterCounts(
        1000 * MILLION, 100 * MILLION, 100 * MILLION, 800 * MILLION, 0, 780 * MILLION, 8, 2
    )
    quantized = {"method": "qlora", "quantization": "nf4", "kbit_prepare": "none"}
    whole, small = (
        weights_bytes(rung(**quantized, **experts).config, counts) for experts in ({}, stack)
    )
    assert whole - small == pytest.approx(780 * MILLION * (2 - 0.516), rel=0.01)
