"""The parts of scripts for TRL's trainers that differ: rows, reward function, checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.scripts.data import has_full_rows


@dataclass(frozen=True, slots=True)
class Objective:
    """One trainer of TRL.

    `kind` is the first part of its name. `reads` is the line that reads the rows before anything
    is loaded, and `dataset` makes TRL's data of them. `arguments` are further ones of the trainer,
    as source. `checks` stand after the trainer is made, and `notes` in the head of the script.
    """

    kind: str
    reads: str = ""
    dataset: str = "Dataset.from_list(rows)"
    arguments: Mapping[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    checks: str = ""
    notes: tuple[str, ...] = ()


_REWARD = '''
def reward(completions: list[Any], **columns: list[Any]) -> list[float]:
    """REPLACE THIS: a score for each completion, such as 1.0 if its answer is right.

    Here, more different characters are better. A completion is a text, or chat messages if its
    prompt is. `columns` has the other fields of the rows, such as the right answers.
    """
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [float(len(set(text))) for text in texts]
'''
_TOO_LONG = """\
if not len(trainer.train_dataset):
    raise SystemExit(f"each row of {args.data} has over {SEQUENCE_LENGTH} tokens")"""
_COMPLETIONS = """\
rows = trainer.train_dataset
longest = max(len(row[name]) for row in rows for name in ("chosen_ids", "rejected_ids"))
if longest > COMPLETION_LENGTH:
    print(f"completions have up to {longest} tokens: they need more memory than the rung")"""
_OBJECTIVES = {
    "default": Objective("SFT"),
    "dpo": Objective(
        "DPO",
        'rows = json_lines(args.data, "prompt", "chosen", "rejected")',
        checks=f"{_TOO_LONG}\n{_COMPLETIONS}",
    ),
    "reward": Objective(
        "Reward", 'rows = json_lines(args.data, "chosen", "rejected")', checks=_TOO_LONG
    ),
    "grpo": Objective(
        "GRPO",
        'rows = json_lines(args.data, "prompt")',
        "Dataset.from_list(short_prompts(rows, tokenizer))",
        {"reward_funcs": "reward"},
        (_REWARD,),
        notes=(
            "Replace the function named reward: the one in this script only shows its form.",
            "A rung is a training step. transformers also generates the completions of a "
            "whole optimizer step at once, and keeps their keys and values while it does.",
        ),
    ),
}
# One process writes the log-probabilities next to the cache of the rows, and all read them there.
_SHARED_PAIRS = 'Dataset.from_json(str(args.data)).select_columns(["prompt", "chosen", "rejected"])'


def objective_of(config: TrainConfig) -> Objective:
    """The trainer of a rung."""
    return _OBJECTIVES[config.objective]


def dataset_of(config: TrainConfig) -> str:
    """The expression of the data that TRL gets."""
    if config.objective == "default":
        rows = "packed_rows" if has_full_rows(config) else "cut_documents"
        return f'Dataset.from_dict({{"input_ids": {rows}(args.data, tokenizer)}})'
    if config.reference == "precomputed" and config.world_size > 1:
        return _SHARED_PAIRS
    return objective_of(config).dataset
