"""What two projects' scripts read: CIFAR-10 of black images, vision transformers without data."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path

NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
LARGE = "vit_l_16-852ce7e3.pth"  # of torchvision, as torch's cache names it
HUGE = "models--timm--vit_huge_patch14_224.orig_in21k"  # of timm, as the hub's cache names it

Weights = Iterator[tuple[str, tuple[int, ...]]]


def make(folder: Path) -> None:
    """Fill `folder` with caches of weights, which take no disk, and images beside the scripts."""
    import numpy as np
    import torch

    from oomdoctor.monitor.inside.checkpoint import write_shards

    data = folder / "beside" / "data" / "cifar-10-batches-py"
    data.mkdir(parents=True)
    images = {"data": np.zeros((10_000, 3072), np.uint8), "labels": [i % 10 for i in range(10_000)]}
    for name in NAMES:
        (data / name).write_bytes(pickle.dumps(images))
    (data / "batches.meta").write_bytes(pickle.dumps({"label_names": list("0123456789")}))
    (folder / "beside" / "timm").mkdir()
    (folder / "beside" / "timm" / "resisc45").symlink_to(folder / "images")
    cache = folder / "torch" / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    with torch.serialization.skip_data():  # a sparse file
        torch.save({name: torch.empty(shape) for name, shape in large()}, cache / LARGE)
    snapshot = folder / "hub" / HUGE / "snapshots" / "made"
    snapshot.mkdir(parents=True)
    (folder / "hub" / HUGE / "refs").mkdir()
    (folder / "hub" / HUGE / "refs" / "main").write_text("made")
    files = [(name, list(shape), "F32", 4 * math.prod(shape)) for name, shape in huge()]
    write_shards(snapshot, files, math.inf)


def large() -> Weights:
    """The names and shapes of torchvision's ViT-L/16."""
    width = 1024
    yield "class_token", (1, 1, width)
    yield from _both("conv_proj", width, 3, 16, 16)
    yield "encoder.pos_embedding", (1, 197, width)
    for i in range(24):
        layer = f"encoder.layers.encoder_layer_{i}"
        yield from _both(f"{layer}.ln_1", width)
        yield f"{layer}.self_attention.in_proj_weight", (3 * width, width)
        yield f"{layer}.self_attention.in_proj_bias", (3 * width,)
        yield from _both(f"{layer}.self_attention.out_proj", width, width)
        yield from _both(f"{layer}.ln_2", width)
        yield from _both(f"{layer}.mlp.0", 4 * width, width)
        yield from _both(f"{layer}.mlp.3", width, 4 * width)
    yield from _both("encoder.ln", width)
    yield from _both("heads.head", 1000, width)


def huge() -> Weights:
    """The names and shapes of timm's ViT-H/14, which has no head."""
    width = 1280
    yield "cls_token", (1, 1, width)
    yield "pos_embed", (1, 257, width)
    yield from _both("patch_embed.proj", width, 3, 14, 14)
    for i in range(32):
        block = f"blocks.{i}"
        yield from _both(f"{block}.norm1", width)
        yield from _both(f"{block}.attn.qkv", 3 * width, width)
        yield from _both(f"{block}.attn.proj", width, width)
        yield from _both(f"{block}.norm2", width)
        yield from _both(f"{block}.mlp.fc1", 4 * width, width)
        yield from _both(f"{block}.mlp.fc2", width, 4 * width)
    yield from _both("norm", width)


def _both(name: str, *shape: int) -> Weights:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
