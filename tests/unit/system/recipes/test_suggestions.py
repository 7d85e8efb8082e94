"""What is suggested for a mistyped key or value: the most usual first."""

from __future__ import annotations

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.system.recipes.recipes import parse_rung

_NO_SIZES = {"sequence_length": None, "effective_batch_size": None, "micro_batch_size": None}


def _message(rung: str) -> str:
    with pytest.raises(OomDoctorError) as caught:
        parse_rung(rung, **_NO_SIZES)
    return caught.value.message


@pytest.mark.parametrize(
    ("rung", "first"),
    [
        ("optimizer=adamw", "adamw_torch_fused"),
        ("optimizer=AdamW", "adamw_torch_fused"),
        ("optimizer=adam", "adamw_torch_fused"),
        ("optimizer=adamw8bit", "adamw_bnb_8bit"),
        ("optimizer=adam8bit", "adamw_bnb_8bit"),
        ("optimizer=paged_adamw", "paged_adamw_8bit"),
        ("optimizer=paged", "paged_adamw_8bit"),
        ("optimizer=lion", "lion_8bit"),
        ("optimizer=galore", "galore_adamw"),
        ("optimizer=adamw_8bits", "adamw_8bit"),
        ("weights_dtype=bf16", "bfloat16"),
        ("weights_dtype=fp16", "float16"),
        ("weights_dtype=half", "float16"),
        ("weights_dtype=fp32", "float32"),
        ("autocast_dtype=true", "bfloat16"),
        ("attention=flash", "flash_attention_2"),
        ("attention=fa2", "flash_attention_2"),
        ("method=peft", "lora"),
        ("method=sft", "full"),
        ("activation_checkpointing=true", "full"),
        ("activation_checkpointing=1", "full"),
        ("method=qlora,quantization=4bit", "nf4"),
        ("method=qlora,quantization=8", "int8"),
        ("loss=true", "liger"),
        ("lora_r=8", "lora_rank"),
        ("r=8", "lora_rank"),
        ("batch_size=8", "micro_batch_size"),
        ("max_length=8", "sequence_length"),
        ("gradient_checkpointing=true", "activation_checkpointing"),
        ("attn_implementation=sdpa", "attention"),
        ("optim=sgd", "optimizer"),
        ("target_modules=q_proj", "lora_targets"),
        ("load_in_4bit=true", "quantization"),
    ],
)
def test_the_most_usual_comes_first(rung, first):
    suggested = _message(rung).partition("(did you mean ")[2]
    assert suggested.startswith((f"{first}?", f"{first},", f"{first} or"))


def test_without_a_similar_name_all_are_listed():
    message = _message("optimizer=xyzzy")
    assert "did you mean" not in message
    assert "adamw_torch_fused, adamw_torch, adamw_bnb_8bit" in message


def test_several_errors_name_the_rung_once():
    message = _message("method=lore,lora_rnk=3")
    assert message.count("--rung") == 1
    assert "has 2 errors" in message
    assert message.count("did you mean") == 2


@pytest.mark.parametrize(
    ("rung", "what"),
    [
        ("lora_rank=1000000", "above the maximum of 16,384; usual are 8 to 256"),
        ("sequence_length=1000000000", "above the maximum"),
        ("effective_batch_size=1000000000", "above the maximum"),
        ("micro_batch_size=1000000000,effective_batch_size=1000000000", "above the maximum"),
    ],
)
def test_an_absurd_number_is_refused(rung, what):
    assert what in _message(rung)


def test_large_numbers_that_may_be_meant_are_accepted():
    rung = parse_rung("method=lora,lora_rank=4096,sequence_length=1048576", **_NO_SIZES)
    assert rung.config.lora_rank == 4096
