"""Which rung certainly needs at least as much as another; doubt is a None."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import COUNTS, MODEL_CONFIG
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.analysis.search.dominance import Setting, needs_more
from oomdoctor.records.configuration.config import TrainConfig

AMPERE = Setting("cuda", COUNTS, MODEL_CONFIG, "8.0")
TURING = replace(AMPERE, compute_capability="7.5")
FP32 = {"weights_dtype": "float32"}
AMP = {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}
EVERY_4 = {"activation_checkpointing": "every_n", "checkpoint_every": 4}
PACKED = {"packing": "packed"}
DPO = {"objective": "dpo"}
WHOLE = {"micro_batch_size": 2, "effective_batch_size": 2}
LORA = {"method": "lora"}
NF4 = {"method": "qlora", "quantization": "nf4"}


def config(**values):
    return TrainConfig(**{"micro_batch_size": 1, "sequence_length": 512, **values})


@pytest.mark.parametrize(
    ("more", "less", "respect"),
    [
        ({}, {"activation_checkpointing": "full"}, "activation_checkpointing"),
        ({}, {"activation_checkpointing": "offload"}, "activation_checkpointing"),
        ({}, {"activation_checkpointing": "attention"}, "activation_checkpointing"),
        (EVERY_4, {**EVERY_4, "checkpoint_every": 2}, "checkpoint_every"),
        (EVERY_4, {"activation_checkpointing": "full"}, "activation_checkpointing"),
        (EVERY_4, {"activation_checkpointing": "offload"}, "activation_checkpointing"),
        ({"activation_checkpointing": "full"}, {"activation_checkpointing": "offload"},
         "activation_checkpointing"),
        ({}, {"offload": "optimizer"}, "offload"),
        ({"optimizer": "adamw_8bit"}, {"offload": "optimizer"}, "optimizer"),
        ({"attention": "eager"}, {}, "attention"),
        ({"attention": "eager"}, {"attention": "flash_attention_2"}, "attention"),
        ({"sequence_length": 1024}, {"sequence_length": 1024, "loss": "liger"}, "loss"),
        ({"sequence_length": 8192}, {"sequence_length": 8192, "loss": "chunked"}, "loss"),
        ({"optimizer": "adamw_torch"}, {}, "optimizer"),
        ({"optimizer": "adamw_8bit"}, {"optimizer": "paged_adamw_8bit"}, "optimizer"),
        ({"optimizer": "adamw_bnb_8bit"}, {"optimizer": "lion_8bit"}, "optimizer"),
        ({**LORA, "optimizer": "paged_adamw_32bit"}, {**LORA, "optimizer": "paged_adamw_8bit"},
         "optimizer"),
        (FP32, {**FP32, "optimizer": "adamw_8bit"}, "optimizer"),
        ({}, {"optimizer": "sgd"}, "optimizer"),
        (FP32, {}, "weights_dtype"),
        (AMP, {}, "weights_dtype"),
        ({**LORA, "lora_rank": 64}, LORA, "lora_rank"),
        ({**LORA, "lora_dropout": 0.1}, LORA, "lora_dropout"),
        ({**LORA, "use_dora": True}, LORA, "use_dora"),
        ({**LORA, "modules_to_save": ("lm_head",)}, LORA, "modules_to_save"),
        ({"frozen_layers": 1}, {"frozen_layers": 2}, "frozen_layers"),
        (WHOLE, {**WHOLE, "optimizer_in_backward": True}, "optimizer_in_backward"),
        ({**NF4, "double_quant": False}, NF4, "double_quant"),
        (NF4, {**NF4, "kbit_prepare": "norms"}, "kbit_prepare"),
        ({"sequence_length": 1024}, {}, "sequence_length"),
        ({"micro_batch_size": 2}, {}, "micro_batch_size"),
        ({**FP32, "document_length": 64}, {}, "weights_dtype"),
        (DPO, {**DPO, "reference": "precomputed"}, "reference"),
    ],
)  # fmt: skip
def test_what_needs_more(more, less, respect):
    assert respect in (needs_more(config(**more), config(**less), AMPERE) or ())
    assert needs_more(config(**less), config(**more), AMPERE) is None


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({}, {}),
        (LORA, {}),
        (LORA, {**LORA, "use_rslora": True}),
        # foreach makes temporaries of the gradient, which then lie beside activations
        (
            {**WHOLE, "optimizer": "adamw_torch"},
            {**WHOLE, "optimizer": "adamw_torch", "optimizer_in_backward": True},
        ),
        ({**LORA, "modules_to_save": ("a",)}, {**LORA, "modules_to_save": ("b",)}),
        # Which parameters are frozen is not known, so their states are not either.
        ({**FP32, "frozen_layers": 1}, {**FP32, "frozen_layers": 1, "optimizer": "adamw_8bit"}),
        ({}, LORA),
        (FP32, AMP),
        (AMP, FP32),
        ({"weights_dtype": "float16"}, {}),
        ({"weights_dtype": "float32", "autocast_dtype": "float16"}, {}),
        # bitsandbytes may keep 32-bit states for the embeddings, here more than 4 bytes each.
        ({"optimizer": "paged_adamw_32bit"}, {"optimizer": "adamw_8bit"}),
        ({}, {"optimizer": "paged_adamw_32bit"}),
        ({}, {"optimizer": "adafactor"}),
        ({"optimizer": "adafactor"}, {"optimizer": "sgd"}),
        (LORA, {**LORA, "optimizer": "adamw_8bit"}),
        # eager attention in 16 bits keeps float32 scores beside the 16-bit ones
        ({**FP32, "attention": "eager"}, {"attention": "eager"}),
        ({"attention": "sdpa"}, {"attention": "flash_attention_2"}),
        # the mask of a row of documents decides which kernel sdpa has
        ({**PACKED, "attention": "eager"}, PACKED),
        ({**PACKED, **FP32}, PACKED),
        (PACKED, {}),
        (DPO, {}),
        ({**DPO, **LORA}, {**DPO, **LORA, "reference": "precomputed"}),
        ({**DPO, **FP32}, DPO),
        ({**DPO, "completion_length": 256}, {**DPO, "completion_length": 64}),
        ({**PACKED, "document_length": 64}, PACKED),
        ({"activation_checkpointing": "every_n"}, {"activation_checkpointing": "attention"}),
        # the layers of one are not among those of the other
        (EVERY_4, {**EVERY_4, "checkpoint_every": 3}),
        # a whole layer is recomputed at once, which counts in a model of few layers
        ({"activation_checkpointing": "mlp"}, {"activation_checkpointing": "full"}),
        ({"activation_checkpointing": "offload"}, {"activation_checkpointing": "offload"}),
        ({**EVERY_4, "checkpoint_every": 1}, {"activation_checkpointing": "full"}),
        # may free each gradient as soon as it is used
        ({"optimizer": "lomo"}, {"offload": "optimizer"}),
        ({"offload": "optimizer"}, {"offload": "optimizer", "optimizer": "sgd"}),
        ({"offload": "optimizer"}, {"optimizer": "sgd"}),
        ({}, {"offload": "parameters"}),
        ({**LORA, "lora_rank": 64, "lora_targets": ("q_proj",)}, LORA),
        ({**LORA, "lora_dropout": 0.2}, {**LORA, "lora_dropout": 0.1}),
        ({"allocator": "default"}, {"allocator": "expandable_segments"}),
        ({"compile": False}, {"compile": True}),
        # whole logits against the fused loss, at a length where the fused loss may need more
        ({}, {"loss": "liger"}),
        ({"micro_batch_size": 1}, {"micro_batch_size": 1, "loss": "chunked"}),
        # TRL's head makes copies of 16-bit weights that wider ones do not need
        ({**FP32, "loss": "chunked"}, {"loss": "chunked"}),
        ({"loss": "liger"}, {"loss": "chunked"}),
        # one more respect, but one less in another
        ({"attention": "eager"}, {"micro_batch_size": 2}),
        # without accumulation no gradients lie beside the activations
        ({"micro_batch_size": 16}, {}),
        # values that change no memory do not make a difference
        ({"lora_rank": 64}, {}),
        ({**LORA, "lora_alpha": 64}, LORA),
        ({**FP32, "tf32": True}, FP32),
        ({"double_quant": False}, {}),
        ({"optimizer": "adamw_8bit"}, {"optimizer": "adamw_bnb_8bit"}),
    ],
)
def test_what_is_equal_or_cannot_be_compared(more, less):
    assert needs_more(config(**more), config(**less), AMPERE) is None


def test_wider_weights_must_outweigh_the_float32_copies_of_the_logits():
    long = {"sequence_length": 8192, "micro_batch_size": 2}  # 8 x 2 x 8192 x 50,000 > 2 x 1e9
    assert needs_more(config(**FP32, **long), config(**long), AMPERE) is None
    assert needs_more(config(**FP32), config(), replace(AMPERE, model_config={})) is None
    assert needs_more(config(**FP32), config(), replace(AMPERE, counts=None)) is None


def test_eight_bit_states_are_not_lean_where_embeddings_are_most_of_the_model():
    less, more = config(optimizer="adamw_8bit"), config()
    assert needs_more(more, less, AMPERE) == ("optimizer",)
    embeddings = replace(COUNTS, linear=199_000_000, embedding=800_000_000)
    assert needs_more(more, less, replace(AMPERE, counts=embeddings)) is None
    assert needs_more(more, less, replace(AMPERE, counts=None)) is None


def test_bfloat16_attention_of_old_cards_is_not_lean():
    assert needs_more(config(**FP32), config(), TURING) is None
    assert needs_more(config(attention="eager"), config(), TURING) is None
    half = {"weights_dtype": "float16"}
    assert needs_more(config(**FP32), config(**half), TURING) is not None
    assert needs_more(config(attention="eager", **FP32), config(**FP32), TURING) is not None
    assert needs_more(config(**FP32), config(), replace(TURING, device_type="cpu")) is not None
    unknown = replace(AMPERE, compute_capability=None)
    assert needs_more(config(**FP32), config(), unknown) is None


_VALUES = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["full", "lora"]),
        "weights_dtype": st.sampled_from(["float32", "bfloat16"]),
        "autocast_dtype": st.sampled_from(["none", "bfloat16"]),
        "optimizer": st.sampled_from(
            ["adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "sgd"]
        ),
        "attention": st.sampled_from(["sdpa", "eager"]),
        "activation_checkpointing": st.sampled_from(
            ["none", "every_n", "full", "offload", "attention"]
        ),
        "checkpoint_every": st.sampled_from([1, 2, 3, 4]),
        "offload": st.sampled_from(["none", "optimizer"]),
        "lora_rank": st.sampled_from([8, 16]),
        "micro_batch_size": st.sampled_from([1, 2, 16]),
    }
)


@given(_VALUES, _VALUES, _VALUES)
def test_it_is_an_order(a, b, c):
    first, second, third = (config(**values) for values in (a, b, c))
    assert needs_more(first, first, AMPERE) is None
    above = needs_more(first, second, AMPERE)
    if above is not None:
        assert needs_more(second, first, AMPERE) is None
        if needs_more(second, third, AMPERE) is not None:
            assert needs_more(third, first, AMPERE) is None


def test_a_try_has_a_size():
    with pytest.raises(ValueError, match="has not been chosen"):
        needs_more(TrainConfig(), config(), AMPERE)
