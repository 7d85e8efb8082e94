"""What an objective makes of a job: the model's head, and how many sequences a sample has."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from oomdoctor.records.configuration.config import (
    TrainConfig,
    documents_of,
    padded_rows,
    rows_of,
    scored_tokens,
)
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError

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
    if config.loss == "chunked":
        return _share_of_documents(config)
    if config.objective not in ("dpo", "grpo"):
        return None
    return _less_padding(Fraction(scored_tokens(config), config.sequence_length - 1), config)


def _less_padding(share: Fraction, config: TrainConfig) -> Fraction:
    """Padding takes one scored token of each padded row."""
    tokens = rows_of(config) * (config.sequence_length - 1)
    return share - Fraction(padded_rows(config), tokens)


def _share_of_documents(config: TrainConfig) -> Fraction:
    """Of a row of several documents, the first token of each has no label."""
    if config.packing == "none":
        return _less_padding(Fraction(1), config)
    size = config.micro_batch()
    tokens = size * config.sequence_length
    return Fraction(tokens - size * documents_of(config), tokens - 1)
