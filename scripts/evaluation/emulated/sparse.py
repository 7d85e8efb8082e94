"""A checkpoint with the right names, shapes and types, and no data on the disk.

Quantized models are made from a checkpoint, shard by shard, and what lies in a shard decides what
the allocator's segments hold.
"""

import json
import struct
from pathlib import Path

NAMES = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}


def make(folder: Path, config, dtype, shard_bytes: float) -> None:
    """Write the sparse checkpoint of a model's config, if the folder has none."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, torch_dtype=dtype)
    config.torch_dtype = dtype
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tied = set(getattr(model, "_tied_weights_keys", None) or [])
    kept = [
        (name, weight)
        for name, weight in model.named_parameters()
        if not (config.tie_word_embeddings and name in tied)
    ]
    shards: list[list] = [[]]
    size = 0
    for name, weight in kept:
        if size + weight.nbytes > shard_bytes and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append((name, weight))
        size += weight.nbytes
    index = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / file, shard)
        index |= {name: file for name, _ in shard}
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    (folder / "done").touch()


def _write_shard(path: Path, weights: list) -> None:
    header: dict = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, weight in weights:
        offsets = [at, at + weight.nbytes]
        header[name] = {
            "dtype": NAMES[str(weight.dtype)],
            "shape": list(weight.shape),
            "data_offsets": offsets,
        }
        at += weight.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        file.truncate(8 + len(text) + at)
