"""Extensions of LoRA and frozen layers: simulated as measured, and they train what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compared_steps import CPU, deeper, differences, phase_bytes, simulated, trained
from library_ends import QUANTIZES_ON_CPU, needs_peft_that_refuses, needs_router_of_its_own
from tiny_models import tiny_job

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.inspection import inspect_model
from oomdoctor.worker.training.layers import named_targets
from oomdoctor.worker.training.techniques.adapter import how_to_reach

LORA = {"method": "lora", "lora_rank": 4}
SAVED = {**LORA, "modules_to_save": ("embed_tokens", "lm_head")}
DORA = {**LORA, "use_dora": True}
NF4 = {"method": "qlora", "quantization": "nf4", "lora_rank": 4, "weights_dtype": "bfloat16"}
AMP = {"weights_dtype": "bfloat16", "autocast_dtype": "bfloat16"}
METHODS: dict[str, dict[str, Any]] = {
    "dora": DORA,
    "dora-nf4": {**NF4, "use_dora": True},
    "saved": SAVED,
    "saved-fp32": {**SAVED, **AMP, "adapter_dtype": "float32"},
    "adapters-bf16": {**LORA, "weights_dtype": "bfloat16", "adapter_dtype": "bfloat16"},
    "adapters-bf16-nf4": {**NF4, "adapter_dtype": "bfloat16", "use_dora": True},
    "adapters-bf16-amp": {**LORA, "autocast_dtype": "bfloat16", "adapter_dtype": "bfloat16"},
    "frozen": {"frozen_layers": 1},
    "frozen-ckpt": {"frozen_layers": 1, "activation_checkpointing": "full"},
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Libraries make a few tables at their first use, which later measurements do not see."""
    for rung in ({}, NF4) if QUANTIZES_ON_CPU else ({},):
        measure(tiny_job("dense", job_timing_limit_s=0.0, **rung), PhaseFile(None))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("dense", name) for name in METHODS),
        ("gqa-tied", "saved"),
        ("encoder", "frozen"),
        ("seq2seq", "frozen"),
    ],
)
def test_simulated_is_measured_to_the_byte(kind: str, name: str) -> None:
    rung = dict(METHODS[name])
    if name == "saved" and kind == "gqa-tied":
        rung["modules_to_save"] = ("embed_tokens",)
    assert differences(tiny_job(kind, sequence_length=64, **rung)) == {}


@pytest.mark.parametrize(
    ("kind", "depths", "rung"),
    [
        ("dense", {"num_hidden_layers": 12}, {"frozen_layers": 3}),
        (
            "dense",
            {"num_hidden_layers": 17},
            {"frozen_layers": 3, "activation_checkpointing": "every_n"},
        ),
        ("seq2seq", {"num_layers": 3, "num_decoder_layers": 11}, {"frozen_layers": 4}),
        ("dense", {"num_hidden_layers": 7}, SAVED),
    ],
)
def test_a_few_layers_stand_for_all(kind: str, depths: dict[str, int], rung: Any) -> None:
    job = deeper(tiny_job(kind, sequence_length=64, **rung), **depths)
    deep, shallow = simulated(job, cuda=True), simulated(job, cuda=True, shallow=True)
    assert 0 < shallow.simulated_layers < shallow.layers
    assert phase_bytes(shallow) == pytest.approx(phase_bytes(deep), rel=2e-5)
    one, other = shallow.sizes[0].measurement, deep.sizes[0].measurement
    assert one.trainable_parameters == other.trainable_parameters


@pytest.mark.parametrize(
    ("kind", "frozen"),
    [
        ("dense", ("model.embed_tokens.", "model.layers.0.")),
        ("conv1d", ("transformer.wte.", "transformer.wpe.", "transformer.h.0.", "lm_head.")),
        (
            "encoder",
            ("bert.embeddings.", "bert.encoder.layer.0.", "cls.predictions.decoder.weight"),
        ),
        ("image", ("vit.embeddings.", "vit.encoder.layer.0.", "vit.layers.0.")),
    ],
)
def test_embeddings_and_first_layers_are_frozen(kind: str, frozen: tuple[str, ...]) -> None:
    setup = build(tiny_job(kind, frozen_layers=1), CPU)
    for name, parameter in setup.model.named_parameters(remove_duplicate=False):
        assert parameter.requires_grad == (not name.startswith(frozen)), name


def test_a_frozen_part_stays_and_the_rest_learns() -> None:
    before = build(tiny_job("dense", frozen_layers=1), CPU).model
    losses, weights = trained(tiny_job("dense", frozen_layers=1))
    assert losses[-1] < losses[0]
    for (name, old), new in zip(before.named_parameters(), weights, strict=True):
        assert torch.equal(old, new) == (not old.requires_grad), name


@pytest.mark.parametrize("rung", [DORA, {**LORA, "use_rslora": True}, SAVED], ids=str)
def test_it_trains_otherwise_than_lora(rung: dict[str, Any]) -> None:
    losses, _ = trained(tiny_job("dense", **rung))
    plain, _ = trained(tiny_job("dense", **LORA))
    assert losses[-1] < losses[0] and losses[-1] != plain[-1]


def test_a_head_that_shares_the_embeddings_is_frozen_with_a_note() -> None:
    setup = build(tiny_job("gqa-tied", frozen_layers=1), CPU)
    assert any("shares the weight" in note for note in setup.notes)
    assert not setup.model.get_output_embeddings().weight.requires_grad


@pytest.mark.parametrize(
    ("rung", "told"),
    [
        ({"frozen_layers": 3}, "has 2 layers"),
        ({**LORA, "modules_to_save": ("embd",)}, "embed_tokens and lm_head"),
    ],
)
def test_what_the_model_does_not_have_is_unsupported(rung: dict[str, Any], told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        build(tiny_job("dense", **rung), CPU)


def test_all_layers_may_be_frozen() -> None:
    setup = build(tiny_job("dense", frozen_layers=2), CPU)
    learning = {name for name, p in setup.model.named_parameters() if p.requires_grad}
    assert learning == {"model.norm.weight", "lm_head.weight"}


def test_phases_of_extensions_need_no_less_than_lora() -> None:
    """What `analysis.dominance` relies on, phase by phase."""
    plain = phase_bytes(simulated(tiny_job("dense", sequence_length=64, **LORA)))
    for rung in (DORA, SAVED):
        more = phase_bytes(simulated(tiny_job("dense", sequence_length=64, **rung)))
        assert all(more[window] >= least for window, least in plain.items())
    whole = phase_bytes(simulated(tiny_job("dense", sequence_length=64)))
    frozen = phase_bytes(simulated(tiny_job("dense", sequence_length=64, frozen_layers=1)))
    assert all(whole[window] >= least for window, least in frozen.items())


@needs_peft_that_refuses
def test_a_refusal_of_peft_names_targets_that_work() -> None:
    with pytest.raises(UnsupportedError, match="all-linear; lora_targets=in_proj works"):
        build(tiny_job("state-space", **LORA), CPU)
    build(tiny_job("state-space", **LORA, lora_targets=("in_proj",)), CPU)


def _with_head(path: str) -> torch.nn.Module:
    """A model of one layer, and a linear layer outside of it."""
    from transformers import PretrainedConfig

    model = torch.nn.Module()
    model.config = PretrainedConfig()
    model.layers = torch.nn.ModuleList([torch.nn.Module() for _ in range(2)])
    for layer in model.layers:
        layer.q_proj = torch.nn.Linear(4, 4)
        layer.mixer = torch.nn.Conv1d(4, 4, 1)
    model.add_module(path, torch.nn.Linear(4, 4))
    return model


def test_a_layer_that_peft_trains_whole_is_not_among_the_layers_to_name() -> None:
    """As DistilBERT's `pre_classifier`, which ends as the head does."""
    model = _with_head("pre_classifier")
    assert named_targets(model, "sequence-classification") == ("q_proj",)
    assert named_targets(model) == ()
    assert named_targets(_with_head("classifier"), "sequence-classification") == ()


def test_an_adapter_that_no_gradient_reaches_goes_onto_the_convolutions() -> None:
    """As with SqueezeBERT, whose only linear layer is its pooler."""
    model = _with_head("pooler")
    config = TrainConfig(method="lora")
    model.layers.requires_grad_(False)
    assert how_to_reach(model, config) == "set lora_targets=mixer"
    for layer in model.layers:
        del layer.mixer
    assert how_to_reach(model, config) == "use method=full"


@needs_router_of_its_own
def test_a_layer_that_is_no_plain_linear_one_is_refused_with_targets_that_work() -> None:
    job = tiny_job("router", **LORA)
    with pytest.raises(UnsupportedError, match="not a plain linear layer; lora_targets=k_proj"):
        simulated(job)
    assert simulated(tiny_job("router", **LORA, lora_targets=("q_proj",)))


@needs_peft_that_refuses
def test_the_layers_that_peft_takes_instead_of_all_are_told() -> None:
    assert inspect_model(tiny_job("state-space", **LORA)).lora_targets == ("in_proj",)
    assert inspect_model(tiny_job("state-space")).lora_targets == ()
    assert inspect_model(tiny_job("dense", **LORA)).lora_targets == ()


def test_layers_with_a_number_for_a_name_are_named_with_the_list_that_they_are_in() -> None:
    """ "0" alone is a decoder layer too, which gets no LoRA."""
    from peft import LoraConfig, inject_adapter_in_model
    from transformers import PretrainedConfig

    model = torch.nn.Module()
    model.config = PretrainedConfig()
    model.merger = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    model.layers = torch.nn.ModuleList([torch.nn.Module()])
    model.layers[0].q_proj = torch.nn.Linear(4, 4)
    targets = named_targets(model)
    assert targets == ("merger.0", "q_proj")
    inject_adapter_in_model(LoraConfig(r=1, target_modules=list(targets)), model)
    adapted = (model.merger[0], model.layers[0].q_proj)
    assert all("lora" in type(layer).__module__ for layer in adapted)


@needs_router_of_its_own
def test_a_layer_that_is_no_plain_linear_one_is_not_among_the_layers_to_name() -> None:
    targets = inspect_model(tiny_job("router", **LORA)).lora_targets
    assert targets == ("k_proj", "o_proj", "q_proj", "v_proj")
    assert simulated(tiny_job("router", **LORA, lora_targets=targets))
