"""Freeze the embeddings and the first layers of a model that is otherwise trained whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.nn import Parameter

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.layers import stacks_of
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def freeze(setup: Setup) -> None:
    """Freeze the embeddings and as many layers as the rung says, from the first stack on.

    A head that shares its weight with the embeddings is frozen with them, which gets a note.

    Raises:
        UnsupportedError: the model has fewer layers, or nothing else that is trained.
    """
    model, layers = setup.model, setup.config.frozen_layers
    stacks = stacks_of(model, model.config)
    paths = [
        f"{stack.path}.{stack.start + number}" for stack in stacks for number in range(stack.layers)
    ]
    if layers > len(paths):
        raise UnsupportedError(
            f"the model has {len(paths)} layers, so {layers} cannot be frozen; set frozen_layers "
            f"to {max(0, len(paths) - 1)} or less"
        )
    for path in paths[:layers]:
        model.get_submodule(path).requires_grad_(False)
    for parameter in _embeddings(model, tuple(f"{stack.path}." for stack in stacks)):
        parameter.requires_grad_(False)
    head = model.get_output_embeddings()
    if head is not None and not head.weight.requires_grad:
        setup.notes.append("the output head shares the weight of the frozen embeddings")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UnsupportedError("all parameters are frozen; set frozen_layers to a smaller number")


def _embeddings(model: PreTrainedModel, stacks: tuple[str, ...]) -> Iterator[Parameter]:
    """The parameters of all embeddings outside the stacks, with their norms."""
    head = model.get_output_embeddings()
    shared = model.get_input_embeddings()
    for path, module in model.named_modules():
        if f"{path}.".startswith(stacks) or (module is head and head is not shared):
            continue
        if isinstance(module, torch.nn.Embedding) or "embed" in path.lower():
            yield from module.parameters(recurse=False)
