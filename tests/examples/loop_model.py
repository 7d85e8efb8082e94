"""The model of the training loops in leaks.py and clean_loops.py, and one step of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

WIDTH, WORDS, ROWS, LENGTH = 128, 1024, 8, 32
GPU = "cuda"


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        x = x + F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """A small language model."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch(rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=GPU)


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def made(**kwargs: Any) -> tuple[Model, torch.optim.Optimizer]:
    model = Model(**kwargs).to(GPU)
    return model, torch.optim.AdamW(model.parameters())


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, words: torch.Tensor) -> Any:
    loss = loss_of(model(words), words)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
