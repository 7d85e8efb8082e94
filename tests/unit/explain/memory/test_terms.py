"""The closed form against figures that are known."""

from __future__ import annotations

from typing import cast

import pytest
from explain_make import LLAMA_8B

from oomdoctor.analysis.memory.closed_form import Term, weights_bytes
from oomdoctor.explain.memory.activations import (
    activations,
    layer_bytes_per_token,
    logits,
    scores_bytes_per_token,
    weight_copies,
)
from oomdoctor.explain.memory.model_sizes import Sizes, sizes_of
from oomdoctor.explain.memory.moments import moments
from oomdoctor.explain.memory.states import (
    adapters,
    gradients,
    optimizer_states,
    trainable,
    weights,
)
from oomdoctor.explain.training.assumed import Training, training_of
from oomdoctor.explain.training.known import Setup
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.units import GIB

GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
    "n_positions": 1024, "activation_function": "gelu_new",
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 32000, "hidden_act": "silu", "num_local_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}  # fmt: skip


def _llama() -> Sizes:
    sizes = sizes_of(LLAMA_8B)
    assert sizes is not None
    return sizes


def _states(sizes: Sizes, training: Training) -> tuple[Term, ...]:
    return tuple(part(sizes, training) for part in (weights, gradients, optimizer_states))


def _training(**values: object) -> Training:
    return training_of(Setup(cast("PartialConfig", values)), LLAMA_8B)[0]


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(LLAMA_8B, 8_030_261_248), (GPT2, 124_439_808), (MIXTRAL, 46_702_792_704)],
)
def test_parameters_are_counted(config: dict[str, object], parameters: int) -> None:
    sizes = sizes_of(config)
    assert sizes is not None
    assert sizes.parameters == pytest.approx(parameters, rel=0.008)


def test_a_config_without_sizes_has_no_formula() -> None:
    assert sizes_of({"model_type": "resnet"}) is None


def test_bytes_a_parameter() -> None:
    sizes = _llama()
    plain = _training(weights_dtype="float32")
    total = sum(t.size_bytes for t in _states(sizes, plain))
    assert total == sizes.parameters * 16  # Rajbhandari et al. 2020, section 3.1
    pure = _training(weights_dtype="bfloat16")
    assert sum(t.size_bytes for t in _states(sizes, pure)) == sizes.parameters * 8
    eight = pure.changed(optimizer="adamw_bnb_8bit")
    assert sum(t.size_bytes for t in _states(sizes, eight)) == sizes.parameters * 6


def test_adapters_are_trained_in_their_own_dtype() -> None:
    sizes, kept = _llama(), _training(method="qlora")
    cast = kept.changed(adapter_dtype="bfloat16")  # as TRL does
    for part in (adapters, gradients, optimizer_states):
        before, after = part(sizes, kept), part(sizes, cast)
        assert before is not None and after is not None
        assert before.size_bytes == 2 * after.size_bytes > 0


def test_sharding_divides() -> None:
    sizes, one = _llama(), _training(weights_dtype="bfloat16")
    sharded = one.changed(world_size=8, sharding="zero3")
    for term, shard in zip(_states(sizes, one), _states(sizes, sharded), strict=True):
        assert shard.size_bytes == pytest.approx(term.size_bytes / 8, abs=1)
    first = one.changed(world_size=8, sharding="zero1")
    assert [t.size_bytes for t in _states(sizes, first)][:2] == [
        t.size_bytes for t in _states(sizes, one)
    ][:2]


def test_checkpointing_leaves_the_input_of_each_layer() -> None:
    sizes = _llama()
    training = _training(micro_batch_size=1, sequence_length=4096)
    plain = activations(sizes, training)
    less = activations(sizes, training.changed(activation_checkpointing="full"))
    # 8B in bf16 at 4096 tokens: about 24 GiB without, 1 GiB of inputs with.
    assert 20 * GIB < plain.size_bytes < 30 * GIB
    assert less.size_bytes == 32 * 4096 * 4096 * 2


def test_eager_attention_adds_the_square() -> None:
    sizes, training = _llama(), _training(micro_batch_size=1, sequence_length=4096)
    sdpa = activations(sizes, training)
    eager = activations(sizes, training.changed(attention="eager"))
    assert eager.size_bytes - sdpa.size_bytes == 32 * 32 * 4096 * 4096 * 6


@pytest.mark.parametrize(
    ("settings", "stores"),
    [
        ({"weights_dtype": "float32"}, True),
        ({"weights_dtype": "float32", "autocast_dtype": "bfloat16"}, False),
        ({}, False),
    ],
)
def test_sdpa_stores_scores_of_32_bit_queries_that_share_keys(
    settings: dict[str, object], stores: bool
) -> None:
    """As simulated: 28 x 768 MiB of softmax for Qwen2.5-1.5B at 4 x 2048, none in 16 bits."""
    training = _training(micro_batch_size=1, sequence_length=4096).changed(**settings)
    assert scores_bytes_per_token(_llama(), training) == (4 * 32 * 4096 if stores else 0)


def test_frozen_weights_in_32_bits_have_copies_under_autocast() -> None:
    """As counted on the CPU: 2 bytes per parameter of each layer, and of the head."""
    sizes = _llama()
    training = _training(method="lora", weights_dtype="float32", autocast_dtype="bfloat16")
    whole = weight_copies(sizes, training)
    assert whole is not None
    assert whole.size_bytes == 2 * (32 * sizes.layer_parameters + 128256 * 4096)
    head = weight_copies(sizes, training.changed(activation_checkpointing="full"))
    assert head is not None and head.size_bytes == 2 * 128256 * 4096


def test_logits_vanish_with_the_fused_loss() -> None:
    sizes, training = _llama(), _training(micro_batch_size=2, sequence_length=2048)
    whole = logits(sizes, training)
    assert whole.size_bytes == 2 * 2048 * 128256 * 14
    for loss in ("liger", "chunked"):
        assert logits(sizes, training.changed(loss=loss)).size_bytes == 0


@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_states_move_with_what_is_offloaded(offload: str) -> None:
    sizes, training = _llama(), _training(sharding="fsdp", world_size=2)
    assert optimizer_states(sizes, training).size_bytes > 0
    assert optimizer_states(sizes, training.changed(offload=offload)).size_bytes == 0


def test_what_depends_on_the_batch_is_unknown_without_one() -> None:
    (step,) = moments(_llama(), _training())
    assert [term.name for term in step.terms] == ["weights", "optimizer states", "gradients"]


# A layer of LlamaForCausalLM with these sizes in bfloat16: bytes a token that autograd saved,
# by `torch.autograd.graph.saved_tensors_hooks` with transformers 5.23, peft 0.21 and rank 4.
MEASURED = {
    "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "vocab_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_act": "silu",
}  # fmt: skip
ATTENTION = "attention"


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        ({}, 11816),
        ({"autocast_dtype": "bfloat16"}, 11816),
        ({"method": "lora"}, 13204),  # as most trainings are: adapters under autocast
        ({"method": "lora", "autocast_dtype": "none"}, 17432),
        ({"method": "lora", "weights_dtype": "float32"}, 12896),
        ({"method": "lora", "weights_dtype": "float32", "autocast_dtype": "none"}, 19608),
        ({"method": "lora", "lora_targets": ATTENTION}, 10568),
        ({"method": "lora", "lora_targets": ATTENTION, "autocast_dtype": "none"}, 12520),
        ({"method": "qlora", "lora_targets": ("q_proj", "v_proj")}, 9464),
        ({"method": "lora", "lora_targets": ("q_proj", "v_proj"), "autocast_dtype": "none"}, 10440),
    ],
)
def test_what_a_layer_keeps(settings: dict[str, object], saved: int) -> None:
    sizes = sizes_of(MEASURED)
    assert sizes is not None
    training = _training(**{"weights_dtype": "bfloat16", "lora_rank": 4, **settings})
    training = training.changed(kbit_prepare="none")  # as it was measured
    assert layer_bytes_per_token(sizes, training) == pytest.approx(saved, rel=0.03)


def test_adapters_are_counted_where_they_sit() -> None:
    everywhere = trainable(_llama(), _training(method="lora", lora_rank=16))
    assert everywhere == 41_943_040  # what peft prints for r=16 on all linear layers of Llama 3 8B
    narrow = trainable(
        _llama(), _training(method="lora", lora_rank=16, lora_targets=("q_proj", "v_proj"))
    )
    assert narrow == 6_815_744  # peft's default target modules


def test_qlora_weights() -> None:
    prepared = _training(method="qlora")
    assert weights(_llama(), prepared).size_bytes == pytest.approx(7.26 * GIB, rel=0.01)
    # TRL leaves the embeddings in 16 bits.
    norms = prepared.changed(kbit_prepare="norms")
    assert weights(_llama(), norms).size_bytes == pytest.approx(5.31 * GIB, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [{}, {"quantization": "int8"}, {"kbit_prepare": "none"}, {"double_quant": False}],
    ids=str,
)
def test_frozen_weights_are_those_of_the_lower_bound_of_a_plan(changes: dict[str, object]) -> None:
    sizes, training = _llama(), _training(method="qlora").changed(**changes)
    linear = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14_336)  # norms are not quantized
    counts = ParameterCounts(sizes.parameters, linear, sizes.embedding_parameters, 0, 0)
    assert weights(sizes, training).size_bytes == weights_bytes(training.config, counts)


@pytest.mark.parametrize(
    ("version", "gib", "told"),
    # all linear layers in 4 bits; the experts in 32, as peft leaves what is not quantized
    [("4.57.1", 23.3, False), ("5.2.0", 169.6, False), (None, 169.6, True)],
)
def test_experts_that_are_one_tensor_are_not_quantized(
    version: str | None, gib: float, told: bool
) -> None:
    sizes = sizes_of(MIXTRAL)
    assert sizes is not None
    training, assumed = training_of(Setup({"method": "qlora"}), MIXTRAL, None, version)
    assert weights(sizes, training).size_bytes == pytest.approx(gib * GIB, rel=0.01)
    assert ("experts not quantized, as with transformers 5" in assumed) is told


def test_experts_that_were_always_one_tensor_are_never_quantized() -> None:
    config = {**MIXTRAL, "model_type": "granitemoe"}
    for version in ("4.57.1", None):
        training, assumed = training_of(Setup({"method": "qlora"}), config, None, version)
        assert training.stacked_experts
        assert not any("experts" in text for text in assumed)


def test_what_is_assumed_is_said() -> None:
    _, assumed = training_of(Setup(), LLAMA_8B)
    text = "; ".join(assumed)
    for word in ("full fine-tuning", "bfloat16", "AdamW", "checkpointing", "sdpa", "--micro-batch"):
        assert word in text
    known: PartialConfig = {
        "method": "lora", "weights_dtype": "bfloat16", "optimizer": "sgd",
        "activation_checkpointing": "full", "attention": "eager",
        "micro_batch_size": 1, "sequence_length": 1,
        "lora_targets": ("q_proj", "v_proj"), "autocast_dtype": "bfloat16",
    }  # fmt: skip
    assert training_of(Setup(known), LLAMA_8B)[1] == ()
