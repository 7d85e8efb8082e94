"""Rows that hold several documents, as TRL's packing and padding-free do, and rows with padding.

TRL joins the sequences of a micro-batch into one row without an attention mask, whose position ids
restart with each document (TRL 1.16 `sft_trainer.DataCollatorForLanguageModeling`, transformers
`DataCollatorWithFlattening`). FlashAttention takes the borders of the documents and computes
nothing between them. For sdpa and eager, transformers builds a mask of all pairs of tokens of the
row from the position ids, so memory grows with the square of the micro-batch.

A padded row ends in one token of padding. That is what needs the most memory: a mask of all pairs
of tokens has the same size for any padding, and FlashAttention computes the other tokens.
"""

from __future__ import annotations

import inspect

import torch

from oomdoctor.records.configuration.config import (
    TrainConfig,
    documents_of,
    masks_pairs,
    padded_rows,
)
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.replacing import module_if_there
from oomdoctor.worker.training.setup import Setup

_IGNORED = -100  # the label of a document's first token, which follows another document
_TASKS = ("causal-lm", "masked-lm", "sequence-classification", "embedding")
# What a collator has at a place of padding, by the name of the tensor.
_AT_PADDING = {"attention_mask": 0, "labels": _IGNORED, "completion_mask": 0}


def check_packing(setup: Setup) -> None:
    """Check that a model can keep the documents of a row apart, and note what that costs.

    Raises:
        UnsupportedError: it cannot.
    """
    model, config, task = setup.model, setup.config, setup.job.model.task
    if task != "causal-lm":
        raise UnsupportedError(f"packing is for causal-lm; with {task} it mixes the documents")
    takes = inspect.signature(getattr(model, "forward", model)).parameters
    if "position_ids" not in takes:
        raise UnsupportedError(
            f"{type(model).__name__} takes no position_ids, so it cannot keep documents apart"
        )
    if not masks_pairs(config):
        return
    masks = module_if_there("transformers.masking_utils")
    # Before 4.53 it does not read position ids.
    if masks is None or not hasattr(masks, "find_packed_sequence_indices"):
        raise UnsupportedError(
            f"with {config.attention} this transformers lets documents attend to each other; "
            "pip install -U transformers"
        )
    maker = masks.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.get(config.attention)
    if maker is not masks.flash_attention_mask:  # which is there if sdpa stands in for a package
        setup.notes.append(
            f"{config.attention} needs a mask of all pairs of tokens in the row; flash_attention_2 "
            "needs none"
        )


def joined(
    ids: torch.Tensor, config: TrainConfig, count: int
) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """`ids` of (sequences, length) as `count` rows: tensors by name with a row each, and numbers.

    A row of `cu_seq_lens_q` and `cu_seq_lens_k` has where each document begins, and the end. As in
    transformers' collator they are one tensor, which becomes two when it is copied to a GPU.
    """
    length = config.sequence_length
    each = min(config.document_length, length) if config.packing == "packed" else length
    sequences = len(ids) // count
    rows = ids.view(count, sequences * length)
    within = torch.arange(length)
    positions = (within % each).repeat(len(ids)).view_as(rows)
    documents = documents_of(config)
    number = within // each
    number = (torch.arange(sequences)[:, None] * documents + number).to(torch.int32)
    starts = torch.arange(sequences)[:, None] * length + torch.arange(documents) * each
    ends = torch.cat([starts.reshape(-1), torch.tensor([sequences * length])]).to(torch.int32)
    borders = ends.repeat(count, 1)
    tensors = {
        "input_ids": rows,
        "labels": torch.where(positions == 0, _IGNORED, rows),
        "position_ids": positions,
        "seq_idx": number.reshape(1, -1).repeat(count, 1),
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
    }
    return tensors, {"max_length_q": each, "max_length_k": each}


def row_of(name: str, tensor: torch.Tensor, number: int) -> torch.Tensor:
    """One micro-batch of a tensor that `joined` made."""
    return tensor[number] if name.startswith("cu_seq_lens") else tensor[number : number + 1]


def check_padding(setup: Setup) -> None:
    """Check that rows of a task can be padded, and note what a mask costs.

    Raises:
        UnsupportedError: they cannot.
    """
    task = setup.job.model.task
    if task not in _TASKS:
        raise UnsupportedError(f"padding is for models that take rows of text, not for {task}")
    # Whatever the size: all sizes of a rung have one set of notes.
    if setup.config.attention == "sdpa":
        setup.notes.append(
            "for padded rows sdpa needs a mask of all pairs of tokens; flash_attention_2 needs none"
        )


def padded(
    batch: dict[str, torch.Tensor], config: TrainConfig, count: int, token: int
) -> dict[str, torch.Tensor]:
    """A batch of `count` micro-batches, whose rows end in `token` where the rung pads them."""
    shape = next(tensor.shape for name, tensor in batch.items() if name.endswith("input_ids"))
    rows, length = shape
    full = rows // count - padded_rows(config)  # the first rows of each micro-batch
    within = torch.arange(rows) % (rows // count)
    ends = (within >= full)[:, None] & (torch.arange(length) == length - 1)
    changed = {"input_ids": token, **_AT_PADDING}
    padded_batch = dict(batch)
    for name, tensor in batch.items():
        kind = next((kind for kind in changed if name.endswith(kind)), None)
        if kind is not None and tensor.shape == shape:
            padded_batch[name] = torch.where(ends, changed[kind], tensor)
    return padded_batch
