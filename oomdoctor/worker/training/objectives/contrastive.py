"""Training of embeddings: pairs of texts, and those of other pairs in a micro-batch as negatives.

As sentence-transformers does it (6.2: `MultipleNegativesRankingLoss`, `modules.Pooling`), with
transformers' Trainer: a sample is a pair, and each of its texts takes another forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import Trainer

COLUMNS = ("anchor", "positive")
_SCALE = 20.0
Tensors = dict[str, torch.Tensor]


def pairs(columns: list[torch.Tensor]) -> Tensors:
    """The tensors of rows of texts, by the names of their columns."""
    return {
        f"{column}_{name}": tensor
        for column, ids in zip(COLUMNS, columns, strict=True)
        for name, tensor in (("input_ids", ids), ("attention_mask", torch.ones_like(ids)))
    }


def contrastive(trainer: type[Trainer], setup: Setup) -> type[Trainer]:
    """A subclass of `trainer` that trains embeddings.

    Raises:
        UnsupportedError: the embeddings are pooled in another way.
    """
    pooling = setup.job.model.pooling or "mean"
    if pooling not in _POOLED:
        raise UnsupportedError(f"embeddings pooled by {pooling} are not supported")

    class ContrastiveTrainer(trainer):  # type: ignore[misc]
        """The Trainer with the loss of embeddings, which no model has."""

        def compute_loss(
            self, model: Module, inputs: Tensors, return_outputs: bool = False, **_: object
        ) -> torch.Tensor | tuple[torch.Tensor, Tensors]:
            features = [
                {
                    name.removeprefix(f"{column}_"): tensor
                    for name, tensor in inputs.items()
                    if name.startswith(f"{column}_")
                }
                for column in COLUMNS
            ]
            loss = _loss(*(_embedded(model, texts, pooling) for texts in features))
            return (loss, {}) if return_outputs else loss

        def prediction_step(
            self, model: Module, inputs: Tensors, *_: object, **__: object
        ) -> tuple[torch.Tensor, None, None]:
            with torch.no_grad(), self.compute_loss_context_manager():
                loss: torch.Tensor = self.compute_loss(model, self._prepare_inputs(inputs))
            return loss, None, None

    return ContrastiveTrainer


def _embedded(model: Module, texts: Tensors, pooling: str) -> torch.Tensor:
    """An embedding for each text; those of its tokens stay in `texts` until the loss is there."""
    output = model(**texts, return_dict=True)
    tokens, mask = output["last_hidden_state"], texts["attention_mask"]
    del output
    texts["token_embeddings"] = tokens
    return torch.cat([_POOLED[pooling](tokens, mask)], dim=-1)


def _mean(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    of_16_bits = tokens.dtype in (torch.float16, torch.bfloat16)
    sums_in = torch.float32 if of_16_bits else tokens.dtype
    counted = mask.unsqueeze(-1).to(tokens.dtype)
    total = (tokens * counted).sum(dim=1, dtype=sums_in)
    number = torch.clamp(counted.sum(dim=1, dtype=sums_in), min=1e-9)
    return (total / number).to(tokens.dtype)


def _first(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    place = mask.to(torch.int).argmax(dim=1)
    return _at(place, tokens)


def _last(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    length = tokens.shape[1]
    values, places = mask.flip(1).max(1)
    place = length - torch.where(values == 0, length - 1, places) - 1
    counted = mask.unsqueeze(-1).expand_as(tokens).to(tokens.dtype)
    return _at(place, tokens * counted)


def _at(place: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    places = place.unsqueeze(-1).unsqueeze(1).expand(-1, 1, tokens.shape[-1])
    return torch.gather(tokens, 1, places).squeeze(1)


def _most(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    counted = mask.unsqueeze(-1).expand_as(tokens).to(tokens.dtype)
    return tokens.masked_fill(counted == 0, float("-inf")).max(dim=1).values


_POOLED = {"mean": _mean, "cls": _first, "lasttoken": _last, "max": _most}


def _loss(anchors: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the scores of each anchor and all positives, of which its own is right."""
    rows = torch.arange(len(anchors), device=anchors.device)
    candidates = torch.cat([positives], dim=0)
    first, second = (
        torch.nn.functional.normalize(side, p=2, dim=-1) for side in (anchors[rows], candidates)
    )
    scores = torch.mm(first, second.transpose(0, 1)) * _SCALE
    right = scores[rows, rows]
    whole = torch.logsumexp(torch.cat([scores], dim=1), dim=1)
    return -(right - whole).mean()
