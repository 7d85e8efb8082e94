"""Claims about how much one technique saves, and how far rules of thumb are off."""

from __future__ import annotations

from collections.abc import Sequence

from claims.claim import LLAMA, QWEN, Claim, Finding, activations, percent, rung
from claims.runs import Answers, Training

_CARD = "A100-SXM4-80GB"
_LORA = "method=lora,"
_CKPT = "activation_checkpointing=full,"
_LENGTHS = (512, 1024, 2048, 4096)  # as long as the model allows
_AGAINST_EAGER = (1024, 2048, 4096)


def _checkpointing(found: Answers) -> Finding:
    saved = [_saved(found, f"plain-{length}", f"ckpt-{length}") for length in _LENGTHS]
    large = _saved(found, "qwen-plain", "qwen-ckpt")
    lora = _slowdowns(found, [(f"plain-{n}", f"ckpt-{n}") for n in (1024, 2048)])
    full = _slowdowns(found, [("full-plain", "full-ckpt")])
    within = [0.4 <= share <= 0.7 for share in (*saved, large)]
    return Finding(
        "true" if all(within) else "partly true" if any(within) else "false",
        f"With whole layers it saves {_range(saved)} of what LoRA on Llama 2 7B holds besides its "
        f"weights (512 to 4,096 tokens), and {percent(large)} on Qwen2.5-7B (2,048). The "
        f"estimated cost is {_range(full)} of the time for full fine-tuning and {_range(lora)} "
        "for LoRA; this was not measured.",
        "One input per layer is kept instead of every intermediate result. What is left is mostly "
        "the logits, so a model with a large vocabulary saves less. LoRA's backward pass is "
        "shorter, so a second forward pass costs relatively more.",
    )


def _saved(found: Answers, plain: str, changed: str) -> float:
    return 1 - activations(found.best(changed)) / activations(found.best(plain))


def _slowdowns(found: Answers, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """How much longer the second takes than the first, as estimated."""
    shares = []
    for fast, slow in pairs:
        first, second = found.simulated[fast].tokens_per_s, found.simulated[slow].tokens_per_s
        if first and second:
            shares.append(first / second - 1)
    return shares


def _range(shares: Sequence[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"


def _flash(found: Answers) -> Finding:
    ratios = {
        length: activations(found.best(f"eager-{length}"))
        / activations(found.best(f"plain-{length}"))
        for length in _AGAINST_EAGER
    }
    speeds = _slowdowns(found, [(f"plain-{n}", f"eager-{n}") for n in (1024, 2048)])
    listed = ", ".join(f"{ratio:.1f} at {length:,}" for length, ratio in ratios.items())
    whole = min(ratios.values()) >= 5
    return Finding(
        "true" if whole else "partly true" if max(ratios.values()) > 2 else "false",
        "Against eager attention, what LoRA on Llama 2 7B holds besides its weights is smaller by "
        f"a factor of {listed} tokens. The whole step takes an estimated {1 + min(speeds):.1f} to "
        f"{1 + max(speeds):.1f} times as long with eager attention; this was not measured.",
        "Eager attention keeps a score for each pair of tokens, so the factor grows with the "
        "length and has no fixed value. PyTorch's default (sdpa) already has a flash kernel, "
        "so a job that uses it gains no more memory.",
    )


def _one_forward(found: Answers) -> Finding:
    names = ("plain-2048", "full-adamw", "full-8bit-ckpt", "full-amp")
    ratios = [found.best(n).allocated_bytes / (found.best(n).forward_bytes or 1) for n in names]
    low, high = min(ratios), max(ratios)
    return Finding(
        "true" if low >= 1.8 else "partly true" if high >= 1.8 else "false",
        f"The peak is {low:.1f} times (LoRA) to {high:.1f} times what one forward pass shows.",
        "Gradients come with the first backward pass and optimizer states with the first step. "
        "LoRA has almost none of either, so there a forward pass comes close.",
    )


def _fragmentation(found: Answers) -> Finding:
    names = [name for name in found.emulated if name.startswith(("frag-", "plain-", "ckpt-"))]
    shares = {name: _unused(found, name) for name in names}
    plain = [share for name, share in shares.items() if not name.endswith("-expandable")]
    pairs = [(name, f"{name}-expandable") for name in names if f"{name}-expandable" in shares]
    before, after = (max(shares[pair[side]] for pair in pairs) for side in (0, 1))
    usual = sorted(plain)[len(plain) // 2]
    within = all(0.05 <= share <= 0.30 for share in plain)
    return Finding(
        "true" if within else "partly true" if max(plain) >= 0.05 else "false",
        f"At the peak, {percent(min(plain))} to {percent(max(plain))} more was reserved than "
        f"allocated (median {percent(usual)}, {len(plain)} jobs with sequences of one "
        f"length). With expandable_segments the worst of {len(pairs)} pairs went from "
        f"{percent(before)} to {percent(after)}.",
        "There is no fixed share: it depends on which sizes are freed and asked for again. "
        "Batches of changing length make it worse.",
    )


def _unused(found: Answers, name: str) -> float:
    need = found.emulated[name]
    assert need.reserved_bytes is not None
    return need.reserved_bytes / need.allocated_bytes - 1


def _lengths(prefix: str, words: str, lengths: Sequence[int]) -> tuple[Training, ...]:
    return tuple(
        Training(
            f"{prefix}-{length}",
            LLAMA,
            f"{words}{rung(length)}",
            card=_CARD if length <= 2048 else "400GiB",
        )
        for length in lengths
    )


_PLAIN = _lengths("plain", _LORA, _LENGTHS)
_FRAGMENTED = {
    "frag-full": (LLAMA, f"{_CKPT}optimizer=adamw_bnb_8bit," + rung(2048, 2)),
    "frag-lora": (QWEN, f"{_LORA}{_CKPT}" + rung(2048, 4)),
    "frag-qlora": (QWEN, f"method=qlora,quantization=nf4,{_CKPT}" + rung(2048, 4)),
    "frag-adamw": (QWEN, rung(2048, 2)),
}

SHARES = (
    Claim(
        "checkpointing",
        "Activation checkpointing saves 40 to 70% of activation memory and costs 20 to 40% of "
        "time.",
        (
            *_PLAIN,
            *_lengths("ckpt", _LORA + _CKPT, _LENGTHS),
            Training("qwen-plain", QWEN, _LORA + rung(), card=_CARD),
            Training("qwen-ckpt", QWEN, f"{_LORA}{_CKPT}{rung()}", card=_CARD),
            Training("full-plain", "Qwen/Qwen2.5-1.5B", rung(), card=_CARD),
            Training("full-ckpt", "Qwen/Qwen2.5-1.5B", _CKPT + rung(), card=_CARD),
        ),
        _checkpointing,
    ),
    Claim(
        "flash",
        "Flash attention saves 5 to 20 times the attention memory and is 2 to 4 times faster.",
        (*_PLAIN, *_lengths("eager", f"{_LORA}attention=eager,", _AGAINST_EAGER)),
        _flash,
    ),
    Claim(
        "one-forward",
        "A profile of one forward pass underestimates the peak 2 to 3 times.",
        (
            *_PLAIN,
            Training("full-adamw", LLAMA, rung()),
            Training("full-8bit-ckpt", LLAMA, f"{_CKPT}optimizer=adamw_bnb_8bit," + rung()),
            Training("full-amp", LLAMA, "weights_dtype=float32,autocast_dtype=bfloat16," + rung()),
        ),
        _one_forward,
    ),
    Claim(
        "fragmentation",
        "Fragmentation adds 5 to 15%, or 20 to 30%.",
        (
            *_PLAIN,
            *_lengths("ckpt", _LORA + _CKPT, _LENGTHS),
            *(Training(name, *words) for name, words in _FRAGMENTED.items()),
            *(
                Training(f"{name}-expandable", model, f"{words},allocator=expandable_segments")
                for name, (model, words) in _FRAGMENTED.items()
            ),
        ),
        _fragmentation,
    ),
)
