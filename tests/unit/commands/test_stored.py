"""LoRA on a checkpoint as it is stored, next to the ladder that was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from analysis_make import request, rung

from oomdoctor.commands.devices.device import model_warnings
from oomdoctor.commands.ladder.stored import with_stored
from oomdoctor.records.facts.checkpoints import CHECKPOINTS
from oomdoctor.records.job.model import ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Inspection

SPEC = ModelSpec("m", "local", "LlamaForCausalLM", "llama", "causal-lm", {"model_type": "llama"})


@pytest.mark.parametrize(
    ("settings", "changes", "added"),
    [
        ({"quant_method": "fp8"}, {}, True),
        ({"quant_method": "gptq"}, {}, True),
        ({"quant_method": "mxfp4"}, {}, False),
        (None, {}, False),
        ({"quant_method": "fp8"}, {"gpus": 2}, False),
    ],
)
def test_it_is_added_where_it_is_trained(
    settings: dict[str, Any] | None, changes: dict[str, Any], added: bool
) -> None:
    asked = request(rung("full"), **changes)
    more = with_stored(asked, replace(SPEC, quantized=settings)).recipe
    assert [each.config.quantization for each in more.rungs] == ["none", *["checkpoint"] * added]
    assert len(more.typed) == added  # the command line has it, so it is there already then
    again = with_stored(replace(asked, recipe=more), replace(SPEC, quantized=settings))
    assert again.recipe == more


def test_a_card_without_fp8_is_told() -> None:
    row = CHECKPOINTS["fp8"]
    assert "this card has 8.6" in str(row.lacks("checkpoint", "8.6"))
    assert row.lacks("checkpoint", "9.0") is None
    assert row.lacks("nf4", "8.6") is None


@pytest.mark.parametrize(("weights", "warned"), [("synthetic", True), ("pretrained", False)])
def test_only_made_up_weights_route_as_no_trained_router_does(weights: str, warned: bool) -> None:
    counts = ParameterCounts(1000, 100, 100, 800, 0, 780, 8, 2)
    inspection = Inspection("M", counts, None, {}, None, None, None, None)
    codes = [warn.code for warn in model_warnings(inspection, request(weights=weights))]
    assert codes == ["moe_routing"] * warned
