"""A tiny model with weights and a tokenizer in a folder, and a text of random words for it."""

from __future__ import annotations

import random
from pathlib import Path

from tiny_configs import CONFIGS

_WORDS = 510


def trainable_folder(folder: Path, kind: str = "dense", **sizes: int) -> Path:
    """A folder that `from_pretrained` loads a model and a tokenizer from."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, **{f"w{n}": n + 2 for n in range(_WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<pad>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(**CONFIGS[kind][2] | sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def words_file(path: Path, tokens: int) -> Path:
    """A text of so many tokens."""
    dice = random.Random(0)
    path.write_text(" ".join(f"w{dice.randrange(_WORDS)}" for _ in range(tokens)))
    return path
