"""What scripts train on: the file that they read, and the trainer of TRL for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.scripts.code import NOTHING, Part, function, lines, together

_CHAT = {"what": "a text or chat messages", "kinds": "str | list"}
_NAMED = "{name: row[name] for name in names}"


@dataclass(frozen=True, slots=True)
class Data:
    """The file that a script takes, and how it is trained on.

    `help` is a phrase for `--help`, `rows` what is counted in one forward pass, and `source` the
    functions that read the file.

    For TRL: `kind` is the first part of its trainer's name. `reads` is the line that reads the rows
    before anything is loaded, and `dataset` makes TRL's data of them. `arguments` are further ones
    of the trainer, as source. `checks` stand after the trainer is made, and `notes` in the head of
    the script.
    """

    help: str
    source: Part
    rows: str = "rows"
    kind: str = "SFT"
    reads: Part = NOTHING
    dataset: str = "Dataset.from_list(rows)"
    arguments: Mapping[str, str] = field(default_factory=dict)
    checks: Part = NOTHING
    notes: tuple[str, ...] = ()


_TEXTS = together(
    function("text_of"),
    function("json_lines", what="a text", kinds="str", kept=_NAMED),
    function("documents"),
)
_PAIRS = together(function("text_of"), function("json_lines", **_CHAT, kept=_NAMED))
TEXT = Data(
    "a text file, or JSON lines with a field named text",
    together(_TEXTS, function("packed_rows")),
    dataset='Dataset.from_dict({"input_ids": packed_rows(args.data, tokenizer)})',
)
_DOCUMENTS = Data(
    "JSON lines whose field text is a document, or a text file, which is one",
    together(_TEXTS, function("cut_documents")),
    dataset='Dataset.from_dict({"input_ids": cut_documents(args.data, tokenizer)})',
)
_OF_OBJECTIVES = {
    "dpo": Data(
        "JSON lines with fields named prompt, chosen and rejected",
        _PAIRS,
        "pairs",
        "DPO",
        Part('rows = json_lines(args.data, "prompt", "chosen", "rejected")'),
        checks=together(lines("too_long"), lines("completions")),
    ),
    "reward": Data(
        "JSON lines with fields named chosen and rejected, each with its prompt",
        _PAIRS,
        "pairs",
        "Reward",
        Part('rows = json_lines(args.data, "chosen", "rejected")'),
        checks=lines("too_long"),
    ),
    "grpo": Data(
        "JSON lines with a field named prompt; the reward function gets the other fields",
        together(
            function("text_of"),
            function("json_lines", **_CHAT, kept="row"),
            function("short_prompts"),
        ),
        "completions",
        "GRPO",
        function("reward", 'rows = json_lines(args.data, "prompt")'),
        "Dataset.from_list(short_prompts(rows, tokenizer))",
        {"reward_funcs": "reward"},
        notes=(
            "Replace the function named reward: the one in this script only shows its form.",
            "This configuration is one training step. transformers also generates the completions "
            "of a whole optimizer step at once, and keeps their keys and values while it does.",
        ),
    ),
}
# One process writes the log-probabilities next to the cache of the rows, and all read them there.
_SHARED_PAIRS = 'Dataset.from_json(str(args.data)).select_columns(["prompt", "chosen", "rejected"])'


def data_of(config: TrainConfig) -> Data:
    """What a rung's script trains on. Rows without padding or borders are cut out of all texts."""
    if config.objective == "default":
        full = config.packing == "none" and config.padding == "none"
        return TEXT if full else _DOCUMENTS
    data = _OF_OBJECTIVES[config.objective]
    if config.reference == "precomputed" and config.world_size > 1:
        return replace(data, dataset=_SHARED_PAIRS)
    return data
