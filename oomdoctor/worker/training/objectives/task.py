"""What an objective makes of a job and of its batches, and what generating completions keeps.

For GRPO, TRL generates the completions of a whole optimizer step at once, scores them, and then
trains on them in micro-batches (TRL 1.16 `grpo_trainer` `_prepare_inputs`). The step is what is run
here. For DPO and reward models, the chosen sequences come first, then the rejected ones:
(2 x pairs, length) of full-length rows (TRL 1.16 `DataCollatorForPreference` in `dpo_trainer` and
`reward_trainer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from inspect import signature

import torch

from oomdoctor.records.configuration.config import (
    TrainConfig,
    documents_of,
    has_reference_pass,
    padded_rows,
    rows_of,
    scored_tokens,
    trains_with_trl,
)
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.setup import Setup, without_adapter

REWARDS = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}  # a single score


def built_job(job: ProbeJob) -> ProbeJob:
    """The job with the task that its model is built for.

    Raises:
        UnsupportedError: the objective is not for this kind of model.
    """
    objective, task = job.config.objective, job.model.task
    if job.config.loss == "chunked" and task != "causal-lm":
        raise UnsupportedError(
            f'TRL\'s loss in chunks is for causal language models, not {task}; use loss = "default"'
        )
    if objective == "default":
        return job
    if task != "causal-lm" and (objective, task) != ("reward", "sequence-classification"):
        raise UnsupportedError(f"{objective} is for causal language models, not {task}")
    if objective == "reward":
        config = {**job.model.config, **REWARDS}
        return replace(job, model=replace(job.model, task="sequence-classification", config=config))
    return job


def scored_share(config: TrainConfig) -> Fraction | None:
    """The share of scored tokens in TRL's masks, which leave out the first token of each row."""
    each = config.sequence_length - 1
    if config.loss == "chunked" and config.packing != "none":
        # Of a row of several documents, the first token of each has no label.
        tokens = config.micro_batch() * config.sequence_length
        unlabeled = config.micro_batch() * documents_of(config)
        return Fraction(tokens - unlabeled, tokens - 1)
    if config.loss == "chunked":
        share = Fraction(1)
    elif config.objective in ("dpo", "grpo") and trains_with_trl(config):
        share = Fraction(scored_tokens(config), each)
    else:
        return None
    # Padding takes one scored token of each padded row.
    return share - Fraction(padded_rows(config), rows_of(config) * each)


def completions_of(ids: torch.Tensor, config: TrainConfig) -> dict[str, torch.Tensor]:
    """The tensors of a whole batch with rows `ids` of (completions, length), by name."""
    scored = scored_tokens(config)
    prompt = config.sequence_length - scored
    batch = {
        "prompt_ids": ids[:, :prompt].contiguous(),
        "prompt_mask": torch.ones((len(ids), prompt), dtype=torch.int64),
        "completion_ids": ids[:, prompt:].contiguous(),
        "completion_mask": torch.ones((len(ids), scored), dtype=torch.int64),
        "advantages": torch.ones(len(ids)),
    }
    if has_reference_pass(config):
        batch["ref_per_token_logps"] = torch.full((len(ids), scored), -1.0)
    return batch


def scored_in_step(config: TrainConfig, device: torch.device) -> torch.Tensor:
    """The number of tokens that the loss of an optimizer step counts."""
    return torch.full((), config.effective_batch_size * scored_tokens(config), device=device)


def lacks_loss(setup: Setup) -> bool:
    """Whether a classifier takes no labels, so that a script passes `compute_loss_func`; noted."""
    lacks = (
        setup.task == "image-classification"
        and "labels" not in signature(without_adapter(setup.model).forward).parameters
    )
    if lacks:
        setup.notes.append(
            "this class has no loss; it is trained with cross-entropy (compute_loss_func)"
        )
    return lacks


def cross_entropy(
    outputs: Mapping[str, torch.Tensor],
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """The loss of scores of (rows, classes), as transformers' own classifiers compute it."""
    (scores,) = outputs.values()
    if num_items_in_batch is None:
        return torch.nn.functional.cross_entropy(scores, labels)
    return torch.nn.functional.cross_entropy(scores, labels, reduction="sum") / num_items_in_batch


def note_generation(setup: Setup) -> None:
    """Note that generation is left out where nothing computes it: on the CPU."""
    if setup.job.mode == "measure" and setup.job.device_type == "cpu":
        setup.notes.append("the training step only, without generation")


def pairs_of(ids: torch.Tensor, config: TrainConfig) -> dict[str, torch.Tensor]:
    """The tensors of a whole batch with rows `ids` of (2 x pairs, length), by name."""
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if config.objective == "dpo":
        scored = (
            torch.arange(config.sequence_length) >= config.sequence_length - scored_tokens(config)
        ).to(torch.int64)
        batch["completion_mask"] = scored.repeat(len(ids), 1)
        if config.reference == "precomputed":
            for name in ("ref_chosen_logps", "ref_rejected_logps"):
                batch[name] = torch.full((len(ids) // 2,), -1.0)
    return batch
