"""LoRA on a quantized checkpoint as it is stored: one more configuration of the ladder."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.records.configuration.config import chosen_by_name
from oomdoctor.records.facts.checkpoints import checkpoint_of
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.system.recipes.recipes import NONE, parse_rung

_TYPED = "method=qlora,quantization=checkpoint,activation_checkpointing=full"


def with_stored(request: SurveyRequest, spec: ModelSpec) -> SurveyRequest:
    """The request with LoRA on the checkpoint as it is stored, unless the user names what to try.

    The added configuration counts as typed, so that the command line of the request has it.
    """
    row, recipe = checkpoint_of(spec.quantized), request.recipe
    configs = [rung.config for rung in recipe.rungs]
    named = recipe.name == NONE or bool(chosen_by_name(recipe.typed))
    named = named or any(config.quantization == "checkpoint" for config in configs)
    if row is None or not row.stored or named or request.gpus > 1:
        return request
    rung = parse_rung(
        _TYPED,
        sequence_length=request.sequence_length,
        effective_batch_size=request.effective_batch_size,
        micro_batch_size=request.micro_batch_size,
        routing=request.routing,
    )
    added = replace(recipe, rungs=(*recipe.rungs, rung), typed=(*recipe.typed, _TYPED))
    return replace(request, recipe=added)
