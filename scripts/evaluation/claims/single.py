"""Claims about one training on one GPU: what fits, and what it needs."""

from __future__ import annotations

from claims.claim import GIB, LLAMA, QWEN, Claim, Finding, device, gb, percent, rung
from claims.runs import Answers, Training

_CKPT = "activation_checkpointing=full"
_FULL = f"{_CKPT},optimizer=adamw_bnb_8bit," + rung()
_QLORA = f"method=qlora,quantization=nf4,{_CKPT},optimizer=paged_adamw_8bit,"
_LORA = "method=lora,lora_rank=16,"
_AMP = "weights_dtype=float32,autocast_dtype=bfloat16,"


def _full_in_24(found: Answers) -> Finding:
    need = found.best("full-8bit")
    states = need.optimizer_bytes / need.trainable_parameters
    return Finding(
        "true" if device(need) <= 24 * GIB else "false",
        f"It needs {gb(device(need))}: {device(need) / (24 * GIB):.1f} times the card.",
        f"Weights and gradients in 16 bits take {gb(need.weights_bytes)} each, and the 8-bit "
        f"states {gb(need.optimizer_bytes)} ({states:.2f} bytes per parameter). Checkpointing and "
        "a small batch reduce none of them.",
    )


def _qlora_in_6(found: Answers) -> Finding:
    needs = {length: device(found.best(f"qlora-{length}")) for length in (512, 2048)}
    large = device(found.best("qlora-qwen-2048"))
    return Finding(
        "true" if needs[2048] < 6.5e9 else "partly true" if needs[512] < 6.5e9 else "false",
        f"Llama 2 7B needs {gb(needs[512])} with sequences of 512 tokens and {gb(needs[2048])} "
        f"with 2,048. Qwen2.5-7B needs {gb(large)} with 2,048.",
        "The 4-bit weights are a constant. The logits grow with the sequence and with the "
        "vocabulary, and what is not quantized (embeddings, output layer) grows with it too.",
    )


def _lora_in_14(found: Answers) -> Finding:
    names = {
        "512 tokens, checkpointing": "lora-512-ckpt",
        "2,048 tokens, checkpointing": "lora-2048-ckpt",
        "512 tokens": "lora-512",
        "2,048 tokens": "lora-2048",
    }
    needs = {words: device(found.best(name)) for words, name in names.items()}
    weights = found.best("lora-512").weights_bytes
    near = [value for value in needs.values() if abs(value / 14.3e9 - 1) < 0.1]
    listed = "; ".join(f"{words}: {gb(value)}" for words, value in needs.items())
    return Finding(
        "true" if len(near) == len(needs) else "partly true" if near else "false",
        f"With a batch of 1, {listed}.",
        f"The frozen 16-bit weights alone take {gb(weights)}. 14.3 GB leaves almost nothing for "
        "activations, the logits and the CUDA context.",
    )


def _gpt2_large(found: Answers) -> Finding:
    flash, eager = found.best("gpt2-large"), found.best("gpt2-large-eager")
    close = abs(device(flash) / 40e9 - 1) < 0.1
    between = device(flash) < 40e9 < device(eager)
    return Finding(
        "true" if close else "partly true" if between else "false",
        f"With today's sdpa attention it needs {gb(device(flash))}, with eager attention "
        f"{gb(device(eager))}.",
        f"Weights and states take {gb(flash.weights_bytes + flash.optimizer_bytes)}. The rest are "
        "activations and the logits of 50,257 words, which autocast also keeps in 32 bits.",
    )


def _states(found: Answers) -> Finding:
    wide, narrow, eight = (
        found.best(name).optimizer_bytes / found.best(name).trainable_parameters
        for name in ("states-fp32", "states-bf16", "states-8bit")
    )
    saved = (1 - eight / wide, 1 - eight / narrow)
    near = [abs(share - 0.75) < 0.05 for share in saved]
    return Finding(
        "true" if all(near) else "partly true" if any(near) else "false",
        f"It saves {percent(1 - eight / wide)} of the states of 32-bit weights, but "
        f"{percent(1 - eight / narrow)} of the states of bf16 weights.",
        f"AdamW's states have the dtype of the weights: {wide:.2f} bytes per parameter in 32 bits, "
        f"{narrow:.2f} in bf16. 8-bit AdamW takes {eight:.2f}, with its constants, and the "
        "embeddings keep 32-bit states.",
    )


SINGLE = (
    Claim(
        "full-24",
        "Full fine-tuning of a 7B model fits in 24 GB with bf16, checkpointing, 8-bit AdamW and "
        "batch 1.",
        (Training("full-8bit", LLAMA, _FULL),),
        _full_in_24,
    ),
    Claim(
        "qlora-6",
        "QLoRA with checkpointing and a paged 8-bit optimizer trains a 7B model in about 6 GB.",
        (
            Training("qlora-512", LLAMA, _QLORA + rung(512)),
            Training("qlora-2048", LLAMA, _QLORA + rung()),
            Training("qlora-qwen-2048", QWEN, _QLORA + rung()),
        ),
        _qlora_in_6,
    ),
    Claim(
        "lora-14",
        "LoRA with rank 16 on a 7B model needs about 14.3 GB.",
        (
            Training("lora-512", LLAMA, _LORA + rung(512)),
            Training("lora-2048", LLAMA, _LORA + rung()),
            Training("lora-512-ckpt", LLAMA, f"{_LORA}{_CKPT}," + rung(512)),
            Training("lora-2048-ckpt", LLAMA, f"{_LORA}{_CKPT}," + rung()),
        ),
        _lora_in_14,
    ),
    Claim(
        "gpt2-large",
        "GPT-2 Large with a batch of 8 x 1,024 tokens needs about 40 GB in mixed precision.",
        (
            Training("gpt2-large", "openai-community/gpt2-large", _AMP + rung(1024, 8)),
            Training(
                "gpt2-large-eager",
                "openai-community/gpt2-large",
                f"{_AMP}attention=eager," + rung(1024, 8),
            ),
        ),
        _gpt2_large,
    ),
    Claim(
        "states",
        "8-bit AdamW saves 75% of the optimizer states.",
        (
            Training("states-fp32", LLAMA, "weights_dtype=float32," + rung(512)),
            Training("states-bf16", LLAMA, rung(512)),
            Training("states-8bit", LLAMA, "optimizer=adamw_bnb_8bit," + rung(512)),
        ),
        _states,
    ),
)
