"""The options that `probe` and `plan` share: the model, the rungs and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from oomdoctor.cli.options import ADVANCED, COMMON, DATA, MODEL, RUNGS, completion, option


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
    from_: Annotated[
        list[str] | None,
        option(
            "--from",
            metavar="[PROGRAM:]FILE",
            panel=COMMON,
            help="Take MODEL and the settings from your training's own configuration: Trainer, "
            "TRL, accelerate, DeepSpeed, axolotl, LLaMA-Factory or torchtune. Repeatable.",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        option(
            "--recipe",
            metavar="NAME|FILE|none",
            panel=COMMON,
            completion=completion.recipes,
            help="Ladder of configurations to try; see `oomdoctor recipes`.  [default: default; "
            "sharded on several GPUs]",
        ),
    ] = None
    gpus: Annotated[
        str | None,
        option(
            "--gpus",
            metavar="N",
            panel=COMMON,
            help="Train on N GPUs of the same kind.  [default: 1]",
        ),
    ] = None
    seq_len: Annotated[
        str | None,
        option(
            "--seq-len",
            metavar="N",
            panel=COMMON,
            help="Tokens per sequence.",
        ),
    ] = None
    effective_batch: Annotated[
        str | None,
        option(
            "--effective-batch",
            metavar="N",
            panel=COMMON,
            help="Sequences per optimizer step, the same for every rung.",
        ),
    ] = None

    task: Annotated[
        str,
        option(
            "--task",
            metavar="TASK",
            panel=MODEL,
            help="Training task: auto, causal-lm, masked-lm, sequence-classification, seq2seq-lm, "
            "image-classification or image-text-to-text.",
        ),
    ] = "auto"
    revision: Annotated[
        str | None,
        option("--revision", metavar="REV", panel=MODEL, help="Branch, tag or commit on the hub."),
    ] = None
    source: Annotated[
        str,
        option(
            "--source",
            metavar="SOURCE",
            panel=MODEL,
            completion=completion.one_of(("auto", "local", "cache", "hub", "catalogue")),
            help="Where to look for the model: auto, local, cache, hub or catalogue.",
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool,
        option(
            "--trust-remote-code",
            panel=MODEL,
            help="Allow the model's custom code to run.",
        ),
    ] = False

    rung: Annotated[
        list[str] | None,
        option(
            "--rung",
            metavar="KEY=VALUE,..",
            panel=RUNGS,
            help="Add a rung, for example method=lora,lora_rank=64. Repeatable.",
        ),
    ] = None
    micro_batch: Annotated[
        str | None,
        option(
            "--micro-batch",
            metavar="N",
            panel=RUNGS,
            help="Use this micro-batch size instead of searching for one.",
        ),
    ] = None
    headroom: Annotated[
        str,
        option(
            "--headroom",
            metavar="PERCENT",
            panel=RUNGS,
            help="Share of the memory budget that a rung must leave free.",
        ),
    ] = "2%"

    rows: Annotated[
        str | None,
        option(
            "--rows",
            metavar="N",
            panel=DATA,
            help="Rows in your training data: show how long training on all of them takes. "
            "--lengths counts them for you.",
        ),
    ] = None
    epochs: Annotated[
        str | None,
        option(
            "--epochs",
            metavar="E",
            panel=DATA,
            help="How often you train on each row of --rows or --lengths.  [default: 1]",
        ),
    ] = None
    lengths: Annotated[
        str | None,
        option(
            "--lengths",
            metavar="FILE",
            panel=DATA,
            help="Count the tokens in each row of a .jsonl, .json, .csv, .txt or .parquet file and "
            "plan for the longest. If --seq-len is also given, rows are packed to it.",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        option(
            "--tokenizer",
            metavar="NAME|FOLDER",
            panel=DATA,
            help="Tokenizer for --lengths, or bytes/4 for a rough count.  "
            "[default: the model's own]",
        ),
    ] = None
    text_field: Annotated[
        str | None,
        option(
            "--text-field",
            metavar="NAME",
            panel=DATA,
            help="Field that holds a row's text or messages.  [default: the usual names]",
        ),
    ] = None

    python: Annotated[
        str | None,
        option(
            "--python",
            metavar="PATH",
            panel=ADVANCED,
            help="Python interpreter you train with.  [default: the one that runs oomdoctor]",
        ),
    ] = None
    fresh: Annotated[
        bool,
        option(
            "--fresh",
            panel=ADVANCED,
            help="Simulate again instead of using what earlier runs simulated.",
        ),
    ] = False
