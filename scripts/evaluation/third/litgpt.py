"""What lit-gpt's fine-tuning scripts read: checkpoints without data, rows of stated lengths."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROWS = 400


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of lit_gpt/config.py. `gated`: the MLP of Llama; `biased`: its layers have biases."""

    folder: str
    longest: int  # tokens of the longest row of Alpaca, from tutorials/resource-tables.md
    layers: int
    width: int
    inner: int
    words: int
    gated: bool = False
    biased: bool = True
    head_bias: bool = False
    norms: tuple[str, ...] = ("norm_1", "norm_2")


MODELS = (
    Shape("microsoft/phi-1_5", 1044, 24, 2048, 8192, 51200, head_bias=True, norms=("norm_1",)),
    Shape("stabilityai/stablelm-base-alpha-3b", 1034, 16, 4096, 16384, 50688),
    Shape("meta-llama/Llama-2-7b-hf", 1304, 32, 4096, 11008, 32000, gated=True, biased=False),
    Shape("meta-llama/Llama-2-13b-hf", 1304, 40, 5120, 13824, 32000, gated=True, biased=False),
)


def make(folder: Path) -> None:
    """Fill the folder with `checkpoints/ORG/NAME` and `alpaca/LENGTH` for each model."""
    for model in MODELS:
        _checkpoint(folder / "checkpoints" / model.folder, model)
        _rows(folder / "alpaca" / str(model.longest), model.longest)


def weights(model: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of lit_gpt/model.py's GPT."""
    width, inner = model.width, model.inner
    yield from _linear("lm_head", model.words, width, model.head_bias)
    yield "transformer.wte.weight", (model.words, width)
    yield from _norm("transformer.ln_f", model)
    for layer in range(model.layers):
        block = f"transformer.h.{layer}"
        for norm in model.norms:
            yield from _norm(f"{block}.{norm}", model)
        yield from _linear(f"{block}.attn.attn", 3 * width, width, model.biased)
        yield from _linear(f"{block}.attn.proj", width, width, model.biased)
        for name in ("fc_1", "fc_2") if model.gated else ("fc",):
            yield from _linear(f"{block}.mlp.{name}", inner, width, model.biased)
        yield from _linear(f"{block}.mlp.proj", width, inner, model.biased)


def _linear(
    name: str, rows: int, columns: int, bias: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _norm(name: str, model: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (model.width,)
    if not model.gated:  # Llama's norms have no bias
        yield f"{name}.bias", (model.width,)


def _checkpoint(folder: Path, model: Shape) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in weights(model)}
    with torch.serialization.skip_data():  # a sparse file
        torch.save(tensors, folder / "lit_model.pth")
    (folder / "lit_config.json").write_text("{}")
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 100)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _rows(folder: Path, longest: int) -> None:
    """Rows as the scripts prepare them; one is the longest, the others have usual lengths."""
    import torch

    if folder.exists():
        return
    folder.mkdir(parents=True)
    chance = random.Random(0)
    lengths = [chance.randint(40, 300) for _ in range(ROWS)]
    lengths[37] = longest
    rows = [{name: torch.arange(n) % 90 for name in ("input_ids", "labels")} for n in lengths]
    torch.save(rows, folder / "train.pt")
    torch.save(rows[-100:], folder / "test.pt")
