"""The options that `probe` and `plan` share: the model, the rungs and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from oomdoctor.cli.options import ADVANCED, COMMON, DATA, MODEL, RUNGS, completion, declare, switch


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """What is trained, with which configurations, on which data.

    Each verb says in the metadata of its field what it uses for the lengths that are not given.
    """

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A Hugging Face id, a folder with config.json, or a name from `oomdoctor models`.",
            show_default=False,
            autocompletion=completion.models,
        ),
    ] = None
    from_: list[str] | None = declare(
        "--from [PROGRAM:]FILE",
        COMMON,
        "Take MODEL and the settings from your training's own configuration: Trainer, "
        "TRL, accelerate, DeepSpeed, axolotl, LLaMA-Factory or torchtune. Repeatable.",
    )
    recipe: str | None = declare(
        "--recipe NAME|FILE|none",
        COMMON,
        "Ladder of configurations to try; see `oomdoctor recipes`.  [default: default; "
        "sharded on several GPUs]",
        completion=completion.recipes,
    )
    gpus: str | None = declare(
        "--gpus N", COMMON, "Train on N GPUs of the same kind.  [default: 1]"
    )
    seq_len: str | None = declare("--seq-len N", COMMON, "Tokens per sequence.")
    effective_batch: str | None = declare(
        "--effective-batch N", COMMON, "Sequences per optimizer step, the same for every rung."
    )

    task: str = declare(
        "--task TASK",
        MODEL,
        "Training task: auto, causal-lm, masked-lm, sequence-classification, seq2seq-lm, "
        "image-classification or image-text-to-text.",
        default="auto",
    )
    revision: str | None = declare("--revision REV", MODEL, "Branch, tag or commit on the hub.")
    source: str = declare(
        "--source SOURCE",
        MODEL,
        "Where to look for the model: auto, local, cache, hub or catalogue.",
        default="auto",
        completion=completion.one_of(("auto", "local", "cache", "hub", "catalogue")),
    )
    trust_remote_code: bool = switch(
        "--trust-remote-code", MODEL, "Allow the model's custom code to run."
    )

    rung: list[str] | None = declare(
        "--rung KEY=VALUE,..",
        RUNGS,
        "Add a rung, for example method=lora,lora_rank=64. Repeatable.",
    )
    micro_batch: str | None = declare(
        "--micro-batch N", RUNGS, "Use this micro-batch size instead of searching for one."
    )
    headroom: str = declare(
        "--headroom PERCENT",
        RUNGS,
        "Share of the memory budget that a rung must leave free.",
        default="2%",
    )

    rows: str | None = declare(
        "--rows N",
        DATA,
        "Rows in your training data: show how long training on all of them takes. "
        "--lengths counts them for you.",
    )
    epochs: str | None = declare(
        "--epochs E", DATA, "How often you train on each row of --rows or --lengths.  [default: 1]"
    )
    lengths: str | None = declare(
        "--lengths FILE",
        DATA,
        "Count the tokens in each row of a .jsonl, .json, .csv, .txt or .parquet file and "
        "plan for the longest. If --seq-len is also given, rows are packed to it.",
    )
    tokenizer: str | None = declare(
        "--tokenizer NAME|FOLDER",
        DATA,
        "Tokenizer for --lengths, or bytes/4 for a rough count.  [default: the model's own]",
    )
    text_field: str | None = declare(
        "--text-field NAME",
        DATA,
        "Field that holds a row's text or messages.  [default: the usual names]",
    )

    python: str | None = declare(
        "--python PATH",
        ADVANCED,
        "Python interpreter you train with.  [default: the one that runs oomdoctor]",
    )
    fresh: bool = switch(
        "--fresh", ADVANCED, "Simulate again instead of using what earlier runs simulated."
    )
