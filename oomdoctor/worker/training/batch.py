"""Random batches of rows for each task, with a fixed seed; they are full unless a rung pads them.

One tensor holds the whole effective batch and is cut into micro-batches, so the tokens are the same
for every micro-batch size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.config import (
    TrainConfig,
    by_ulysses,
    has_own_step,
    held_micro_batches,
    rows_of,
    trains_with_trl,
)
from oomdoctor.records.job.model import ON_SOUND
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.objectives.contrastive import COLUMNS, pairs
from oomdoctor.worker.training.objectives.image_forms import classified
from oomdoctor.worker.training.objectives.images import plain_tokens, with_images
from oomdoctor.worker.training.objectives.packing import joined, padded, row_of
from oomdoctor.worker.training.objectives.policy import scored_before
from oomdoctor.worker.training.objectives.sound import recordings, spoken, with_recordings
from oomdoctor.worker.training.objectives.task import completions_of, pairs_of, scored_in_step
from oomdoctor.worker.training.setup import Setup, without_adapter

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MASKED_SHARE = 0.15  # of tokens have a label in masked language modelling (BERT, section 3.1)
Tensors = dict[str, torch.Tensor]
Batch = dict[str, torch.Tensor | int]  # numbers are what a kernel takes


def micro_batches(setup: Setup, config: TrainConfig, *, count: int) -> list[Batch]:
    """`count` micro-batches on the device, of the sizes of `config`, as a collator returns them.

    Text: `input_ids`, `attention_mask` and `labels` of (micro-batch, sequence length), int64.
    Where a place has several tokens of sound, a row of `input_ids` for each and `labels` of
    (micro-batch, sequence length, tokens of a place).
    With packing, one row and where its documents begin (see `joined`).
    Images: `pixel_values` of (micro-batch, channels, height, width) and `labels` of (micro-batch,).
    Embeddings: `input_ids` and `attention_mask` of each text of a pair.
    Speech: what a feature extractor makes of sound, and `labels` of (micro-batch, length).
    """
    device, whole = setup.device, _whole_batch(setup, config, rows_of(config) * count)
    if config.packing != "none":
        tensors, numbers = joined(whole["input_ids"], config, count)
        if has_own_step(config):
            del tensors["labels"]
            more = scored_before(config, rows_of(config) * count)
            tensors |= {name: tensor.view(count, -1) for name, tensor in more.items()}
        return [
            {name: row_of(name, tensor, i).to(device) for name, tensor in tensors.items()} | numbers
            for i in range(count)
        ]
    if config.padding != "none":
        token = padding_token(setup.model_config.get_text_config())
        whole = padded(whole, config, count, token)
    batches: list[Batch] = [
        {
            name: tensor[i * part : (i + 1) * part].to(device)
            for name, tensor in whole.items()
            for part in (len(tensor) // count,)
        }
        for i in range(count)
    ]
    if config.objective == "grpo" and trains_with_trl(config):
        scored = scored_in_step(config, device)
        for batch in batches:
            batch["num_items_in_batch"] = scored
    return batches


def held_batches(setup: Setup) -> list[Batch]:
    """All micro-batches that the device holds in a step; the first ones are those of the step."""
    count = setup.config.accumulation_steps()
    batches = micro_batches(setup, setup.config, count=count)
    if by_ulysses(setup.config):
        batches = [_with_positions(batch) for batch in batches]
    ahead = held_micro_batches(setup.config, on_cpu=setup.device.type == "cpu") - count
    more = [_copied(batches[0]) for _ in range(ahead)]
    if setup.config.context_parallel_size > 1:
        batches = [_moved(batch, torch.device("cpu")) for batch in batches]
    return batches + more


class _Loader:
    """A data loader without an end, which moves its batches to the device."""

    def __init__(self, batches: list[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Iterator[Batch]:
        for batch in cycle(self._batches):
            given = _moved(batch, self._device)  # kept until the next one, as accelerate's loader
            yield given


def samples_of(setup: Setup, batches: list[Batch]) -> Iterator[Batch]:
    """The batches for a step on the device, as a data loader gives them.

    With Ulysses, DeepSpeed's loader gathers those of all GPUs that share sequences, and cuts them.
    """
    if not by_ulysses(setup.config):
        return iter([on_device(setup, batch) for batch in batches])
    if setup.cut_batches is None:
        loader = _Loader(batches, setup.device)
        accelerator = setup.trainer.accelerator
        setup.cut_batches = accelerator.deepspeed_ulysses_dl_adapter(loader, setup.model)
    cut: Iterator[Batch] = setup.cut_batches
    return cut


def _with_positions(batch: Batch) -> Batch:
    """The batch with the positions of its tokens in place of a mask, for DeepSpeed's loader.

    Raises:
        UnsupportedError: it has no label for each token.
    """
    ids, labels = batch.get("input_ids"), batch.get("labels")
    if not (isinstance(ids, torch.Tensor) and isinstance(labels, torch.Tensor)) or (
        ids.shape != labels.shape
    ):
        raise UnsupportedError("Ulysses cuts rows of tokens with a label each, as of causal-lm")
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).contiguous()
    return {k: v for k, v in batch.items() if k != "attention_mask"} | {"position_ids": positions}


def on_device(setup: Setup, batch: Batch) -> Batch:
    """The batch for a step: itself, or a copy on the device where GPUs share sequences.

    accelerate cuts that to the part of a rank, in place.
    """
    shares = setup.config.context_parallel_size > 1
    return _moved(batch, setup.device) if shares else batch


def _moved(batch: Batch, device: torch.device) -> Batch:
    return {k: v if isinstance(v, int) else v.to(device) for k, v in batch.items()}


def _copied(batch: Batch) -> Batch:
    """A copy of a batch; names of one tensor stay names of one."""
    made: dict[tuple[int, int], torch.Tensor] = {}
    copied = dict(batch)
    for name, value in batch.items():
        if not isinstance(value, int):
            key = _memory_of(value)
            made[key] = copied[name] = made[key] if key in made else value.clone()
    return copied


def as_on_gpu(batch: Batch) -> Batch:
    """The batch as its copy on a GPU, where each name has its own tensor."""
    seen: set[tuple[int, int]] = set()
    copied = dict(batch)
    for name, value in batch.items():
        if not isinstance(value, int):
            if _memory_of(value) in seen:
                copied[name] = value.clone()
            seen.add(_memory_of(value))
    return copied


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset()


def tensors_of(batches: Iterable[Batch]) -> Iterator[torch.Tensor]:
    """The tensors with rows of batches, which may also have numbers."""
    for value in (value for batch in batches for value in batch.values()):
        if not isinstance(value, int) and value.dim() > 0:
            yield value


def _whole_batch(setup: Setup, config: TrainConfig, rows: int) -> Tensors:
    task, model_config = setup.task, setup.model_config
    generator = torch.Generator().manual_seed(setup.job.seed)
    if task in ("image-classification", "audio-classification"):
        if task == "image-classification":
            inputs = classified(rows, config, model_config, generator)
        else:
            inputs = recordings(rows, config, setup, generator)
        labels = torch.randint(model_config.num_labels, (rows,), generator=generator)
        return inputs | {"labels": labels}
    text = model_config.get_text_config()
    shape = (rows, spoken(config, setup) if task == "ctc" else config.sequence_length)
    first, end = _first_plain_token(text), plain_tokens(model_config, _vocabulary(text))
    first = first if first < end else 0
    if task == "embedding":
        return pairs([torch.randint(first, end, shape, generator=generator) for _ in COLUMNS])
    ids = torch.randint(first, end, shape, generator=generator)
    if task == "image-text-to-text":
        return with_images(ids, config, model_config, generator)
    if task in ON_SOUND:
        return with_recordings(ids, config, setup, generator)
    if has_own_step(config):
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | scored_before(
            config, rows
        )
    if config.objective == "grpo":
        return completions_of(ids, config)
    if config.objective != "default":
        return pairs_of(ids, config)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if task == "sequence-classification":
        _end_rows(ids, model_config)
        if model_config.num_labels == 1:  # a score, as of a reranker
            batch["labels"] = torch.rand(rows, generator=generator)
        else:
            batch["labels"] = torch.randint(model_config.num_labels, (rows,), generator=generator)
    elif task == "masked-lm":
        chosen = torch.rand(shape, generator=generator) < MASKED_SHARE
        chosen[:, 0] = True  # a row without a label would make the loss NaN
        batch["labels"] = torch.where(chosen, ids, torch.full_like(ids, -100))
    elif books := _codebooks(setup):
        batch["input_ids"] = ids.repeat_interleave(books, dim=0)
        batch["labels"] = ids.unsqueeze(-1).repeat(1, 1, books)
    else:
        batch["labels"] = ids.clone()
    return batch


def _codebooks(setup: Setup) -> int:
    """How many tokens of sound a place has, each with its own embedding; 0 for one of text."""
    if not hasattr(setup.model_config, "num_codebooks"):
        return 0
    embeddings = without_adapter(setup.trainer.model).get_input_embeddings()
    return len(embeddings) if isinstance(embeddings, torch.nn.ModuleList) else 0


def _end_rows(ids: torch.Tensor, model_config: PretrainedConfig) -> None:
    """Put the end token last in each row, and nowhere else: some models classify by it."""
    end = getattr(model_config, "eos_token_id", None)
    if not model_config.is_encoder_decoder or not isinstance(end, int):
        return
    ids[ids == end] = end - 1 if end else 1
    ids[:, -1] = end


def logits_shape(setup: Setup, config: TrainConfig) -> tuple[int, int]:
    """(vocabulary, tokens of a micro-batch) if the model returns scores per token, else (0, 0)."""
    # TRL never has the scores of all tokens at once.
    scored = ("causal-lm", "masked-lm", "seq2seq-lm", "image-text-to-text", "speech-seq2seq")
    if setup.task not in scored or trains_with_trl(config):
        return 0, 0
    # Shifting the labels drops one position per row, unless they are rolled.
    tokens = config.micro_batch() * (config.sequence_length - (not has_own_step(config)))
    return _vocabulary(setup.model_config.get_text_config()), tokens


def _vocabulary(text_config: PretrainedConfig) -> int:
    """How many tokens there are: all code points for a model of characters, such as CANINE."""
    return int(getattr(text_config, "vocab_size", sys.maxunicode + 1))


def _first_plain_token(text_config: PretrainedConfig) -> int:
    """The first token after padding, because a full-length row has no padding.

    RoBERTa and similar models count positions from padding, so it must not appear by chance.
    """
    pad = getattr(text_config, "pad_token_id", None)
    return pad + 1 if isinstance(pad, int) and 0 <= pad < _vocabulary(text_config) // 2 else 0


def padding_token(text_config: PretrainedConfig) -> int:
    """The token of padding, or the first one if the model has none: the mask leaves it out."""
    pad = getattr(text_config, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < _vocabulary(text_config) else 0
