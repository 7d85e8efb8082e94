"""Sparse safetensors files: names, shapes and types of all weights, and no data on the disk.

A stand-in for a tokenizer that is not there: about four characters are one token.

The vocabulary has the size and the special tokens of the model's config, so that embeddings keep
their shape. What the tokens are means nothing, as the model's weights do.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from oomdoctor.package_data import data_of

# What `save_pretrained` takes as the largest shard by default, for most checkpoints on the hub.
SHARD_BYTES = 5_000_000_000
_DEFAULT_WORDS = 32_000


def write_checkpoint(
    folder: Path, config: Any, model_class: Any, dtype: Any, shard_bytes: float = SHARD_BYTES
) -> None:
    """Write the checkpoint of a transformers config into a folder, its config.json included.

    `model_class` builds the model from the config, such as AutoModelForCausalLM; its weights are
    written in `dtype`. Tied weights are written once.
    """
    import torch

    # Auto classes import the model's module when it is first built, and with it libraries that
    # make tensors with values, as torch 2.6's compiler does.
    getattr(model_class, "_model_mapping", {}).get(type(config), None)
    with torch.device("meta"):
        build = getattr(model_class, "from_config", None) or model_class._from_config
        model = build(config)
    config.architectures = [type(model).__name__]
    # An older transformers cannot write the `dtype` that config.json of a newer one may have.
    name = "dtype" if hasattr(type(config), "torch_dtype") else "torch_dtype"
    setattr(config, name, dtype)
    config.save_pretrained(folder)
    write_shards(folder, weights_of(model, config, dtype), shard_bytes)


def write_shards(
    folder: Path,
    weights: Iterable[tuple[str, list[int], str, int]],
    shard_bytes: float,
    stem: str = "model",
) -> None:
    """Write weights (name, shape, type, bytes) as one file, or as shards with their index."""
    from huggingface_hub import split_state_dict_into_shards_factory

    by_name = {weight[0]: weight for weight in weights}
    split: Any = split_state_dict_into_shards_factory(
        by_name,
        get_storage_size=lambda weight: weight[3],
        filename_pattern=stem + "{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        _write(folder / file, [by_name[name] for name in names])
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        path = folder / f"{stem}.safetensors.index.json"
        path.write_text(json.dumps(index), encoding="utf-8")


def weights_of(model: Any, config: Any, dtype: Any) -> Iterable[tuple[str, list[int], str, int]]:
    """Name, shape, type and bytes of each weight of a model, tied ones once."""
    # A dictionary since transformers 5, a list or nothing before.
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    is_tied = getattr(config, "tie_word_embeddings", False)
    types, seen = _facts()["types"], set[int]()
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) in seen or (is_tied and name in tied):
            continue
        seen.add(id(value))
        kind = dtype if value.is_floating_point() else value.dtype
        yield name, list(value.shape), types[str(kind)], value.numel() * kind.itemsize


def _write(path: Path, weights: Iterable[tuple[str, list[int], str, int]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape, kind, size in weights:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)  # a hole: it takes no space


def write_tokenizer(folder: Path, config: Mapping[str, Any], *, pads: bool = False) -> None:
    """Write the tokenizer's files beside the config of a model.

    One that `pads` does so with the last token if the config names none for it.
    """
    text_config = config.get("text_config") or config
    size = int(text_config.get("vocab_size") or config.get("vocab_size") or _DEFAULT_WORDS)
    special = _special_tokens(text_config, size)
    by_number = {number: word for word, number in special.items()}
    words = {by_number.get(number, f"t{number}"): number for number in range(size)}
    # Text is cut every few characters. No piece is in the vocabulary, so each is the unknown token.
    facts = _facts()
    data, settings = facts["tokenizer"], facts["settings"]
    data["added_tokens"] = [_added(word, number) for word, number in sorted(special.items())]
    data["model"]["vocab"] = words
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    settings["model_max_length"] = int(text_config.get("max_position_embeddings") or 1 << 20)
    settings |= {key: word for key, word in facts["names"].items() if word in special}
    if text_config.get("model_type") in facts["masked"]:
        settings |= facts["of_masked"]
    if pads:
        settings.setdefault("pad_token", settings.get("eos_token", settings["unk_token"]))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _facts() -> dict[str, Any]:
    """The names of types in safetensors, and what is the same in all tokenizers.

    The rows of the `masked` models begin and end with a token.
    """
    facts: dict[str, Any] = data_of("stand_in.json")
    return facts


def _special_tokens(config: Mapping[str, Any], size: int) -> dict[str, int]:
    """The tokens that a config numbers; where two have one number, the first of them."""
    wanted = {"<s>": "bos_token_id", "</s>": "eos_token_id", "<pad>": "pad_token_id"}
    tokens: dict[str, int] = {}
    for word, key in wanted.items():
        number = config.get(key)
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and 0 <= number < size and number not in tokens.values():
            tokens[word] = number
    first = ("<s>",) if config.get("model_type") in _facts()["masked"] else ()
    for word in (*first, "</s>", "<unk>", "<mask>"):
        if word not in tokens:
            free = (n for n in range(size) if n not in tokens.values())
            tokens[word] = next(free)
    return tokens


def _added(word: str, number: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": word, "special": True, **flags}
