"""Models whose shapes depend on the tokens of a text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compared_steps import deeper, differences, phase_bytes, simulated
from tiny_models import tiny_job

from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.device import known_values
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.training.model_config import load_config


@pytest.mark.parametrize("rung", [{}, {"method": "lora", "lora_rank": 4}], ids=["full", "lora"])
def test_a_classifier_by_end_tokens_needs_what_it_takes(rung: dict[str, object]) -> None:
    job = tiny_job("ends-decide", **rung)
    measure(job, PhaseFile(None))  # libraries make a few tables at their first use
    assert differences(job) == {}


@pytest.mark.parametrize("rung", [{}, {"method": "lora", "lora_rank": 4}], ids=["full", "lora"])
def test_tokens_are_split_among_experts_as_on_a_device(rung: dict[str, object]) -> None:
    """Each of two experts gets all tokens, so that no router decides."""
    job = tiny_job("split-by-experts", **rung)
    measure(job, PhaseFile(None))
    assert differences(job) == {}


@pytest.mark.parametrize("rung", [{}, {"method": "lora", "lora_rank": 4}], ids=["full", "lora"])
def test_an_expert_that_argmax_chooses_gets_its_tokens(rung: dict[str, object]) -> None:
    """One expert gets all tokens, so that no router decides."""
    pytest.importorskip("transformers", minversion="5.24")
    job = tiny_job("one-expert-a-token", attention="eager", **rung)
    measure(job, PhaseFile(None))
    assert differences(job) == {}


def test_values_of_larger_tensors_are_kept_for_models_that_need_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both experts get all tokens: its first counts the zeros of the mask, its second the ones."""
    pytest.importorskip("transformers", minversion="5.24")
    monkeypatch.setattr(real_values, "FEW_BYTES", 1 << 10)
    job = tiny_job("one-hot-again", attention="eager")
    measure(job, PhaseFile(None))
    assert differences(job) == {}
    monkeypatch.setattr(real_values, "MANY_BYTES", 1 << 10)
    with pytest.raises(UnsupportedError, match="a name is made of unknown numbers"):
        simulated(job)


def test_a_class_that_autocast_breaks_on_a_gpu_says_how_to_train_it() -> None:
    """PyTorch's own code for CUDA says the same on the emulated GPU; autocast on a CPU differs."""
    pytest.importorskip("transformers", minversion="5.24")
    rung = {"weights_dtype": "bfloat16", "sequence_length": 64}
    with pytest.raises(UnsupportedError, match=r"mixes two data types.*use autocast_dtype=none"):
        simulated(tiny_job("two-types", autocast_dtype="bfloat16", **rung), cuda=True)
    assert phase_bytes(simulated(tiny_job("two-types", **rung), cuda=True))


@pytest.mark.parametrize("kind", ["hears", "decoder-of-sound", "codebooks"])
@pytest.mark.parametrize("rung", [{}, {"method": "lora", "lora_rank": 4}], ids=["full", "lora"])
def test_what_also_takes_sound_needs_what_it_takes_on_text(
    kind: str, rung: dict[str, object]
) -> None:
    job = tiny_job(kind, **rung)
    measure(job, PhaseFile(None))
    assert differences(job) == {}
    alone = "trained on text alone, without what else this class takes"
    assert (alone in simulated(job).notes) == (kind == "hears")


def test_a_class_of_characters_has_no_vocabulary() -> None:
    assert differences(tiny_job("characters")) == {}


def test_an_end_outside_the_vocabulary_is_no_padding() -> None:
    """As in the defaults of Arcee's config.json, with 32,000 tokens and the end 128001."""
    job = tiny_job("dense", job_mode="simulate")
    config = {**job.model.config, "eos_token_id": 128001, "pad_token_id": None}
    spec = replace(job.model, task="sequence-classification", config=config)
    assert load_config(spec).pad_token_id == 0


def test_no_layer_is_dropped_by_chance() -> None:
    """Neither where a step is measured nor where the values of tokens are known."""
    job = tiny_job("ends-decide")
    layers_may_drop = deeper(job, encoder_layerdrop=0.9, decoder_layerdrop=0.9)
    assert differences(layers_may_drop) == {}
    assert phase_bytes(simulated(layers_may_drop)) == phase_bytes(simulated(job))


def test_a_sum_is_positive_as_often_as_any_of_its_elements() -> None:
    with known_values.one_hot_masks_known():
        mask = torch.nn.functional.one_hot(torch.zeros(2, 6, dtype=torch.int64), 4)
    func = torch.ops.aten.sum.dim_IntList
    note = known_values.learner(func)
    assert note is not None
    for dims, share in (([0, 1], 1), ([0], 0.5)):
        total = mask.sum(dims)
        note((mask, dims), total)
        assert known_values.positive_share(total) == share
