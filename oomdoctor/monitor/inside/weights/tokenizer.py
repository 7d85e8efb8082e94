"""A stand-in for a tokenizer that is not there: about four characters are one token.

The vocabulary has the size and the special tokens of the model's config, so that embeddings keep
their shape. What the tokens are means nothing, as the model's weights do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CHARACTERS = 4
_DEFAULT_WORDS = 32_000
# Models whose rows begin and end with a token.
_MASKED = ("bert", "roberta", "distilbert", "electra", "deberta-v2")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the tokenizer's files beside the config of a model."""
    text_config = config.get("text_config") or config
    size = int(text_config.get("vocab_size") or config.get("vocab_size") or _DEFAULT_WORDS)
    special = _special_tokens(text_config, size)
    by_number = {number: word for word, number in special.items()}
    words = {by_number.get(number, f"t{number}"): number for number in range(size)}
    # Text is cut every few characters. No piece is in the vocabulary, so each is the unknown token.
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(word, number) for word, number in sorted(special.items())],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": rf"[\s\S]{{1,{_CHARACTERS}}}"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "chat_template": _TEMPLATE,
        "model_max_length": int(text_config.get("max_position_embeddings") or 1 << 20),
    }
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    settings |= {key: word for key, word in names.items() if word in special}
    if text_config.get("model_type") in _MASKED:
        settings |= {"mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _special_tokens(config: Mapping[str, Any], size: int) -> dict[str, int]:
    """The tokens that a config numbers; where two have one number, the first of them."""
    wanted = {"<s>": "bos_token_id", "</s>": "eos_token_id", "<pad>": "pad_token_id"}
    found: dict[str, int] = {}
    for word, key in wanted.items():
        number = config.get(key)
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and 0 <= number < size and number not in found.values():
            found[word] = number
    first = ("<s>",) if config.get("model_type") in _MASKED else ()
    for word in (*first, "</s>", "<unk>", "<mask>"):
        if word not in found:
            free = (n for n in range(size) if n not in found.values())
            found[word] = next(free)
    return found


def _added(word: str, number: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": word, "special": True, **flags}
