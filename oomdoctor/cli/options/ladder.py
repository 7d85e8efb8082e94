"""The options of `probe` and `plan`: what is trained, on which ladder, of which data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oomdoctor.cli.options import optional

# The model, and where it comes from
Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A hub id, a folder with config.json, or a name from `oomdoctor models`.",
        show_default=False,
    ),
]
Task = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="TASK",
        help="auto, causal-lm, masked-lm, sequence-classification, seq2seq-lm, "
        "image-classification.",
    ),
]
Revision = Annotated[str | None, optional("--revision", "REV", "Branch, tag or commit on the hub.")]
Source = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="SOURCE",
        help="Where the configuration may come from: auto, local, cache, hub, catalogue.",
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run modelling code that comes with the model.")
]
Python = Annotated[
    str | None,
    optional(
        "--python",
        "PATH",
        "The interpreter you train with. By default the one oomdoctor runs in.",
    ),
]

# The rungs
RecipeName = Annotated[
    str,
    typer.Option("--recipe", metavar="NAME|FILE|none", help="The ladder; see `oomdoctor recipes`."),
]
Rungs = Annotated[
    list[str] | None,
    optional("--rung", "KEY=VALUE,..", "Add a rung, such as method=lora,lora_rank=64. Repeatable."),
]
MicroBatch = Annotated[
    str | None,
    optional("--micro-batch", "N", "Fix the micro-batch size instead of searching for it."),
]
Headroom = Annotated[
    str,
    typer.Option(
        "--headroom", metavar="PERCENT", help="Share of the budget a rung must leave free."
    ),
]

# The rows of the data
Lengths = Annotated[
    str | None,
    optional(
        "--lengths",
        "FILE",
        "Count the tokens of each row and answer for the longest: .jsonl, .json, .csv, .txt, "
        ".parquet. --seq-len is then what rows are packed to.",
    ),
]
Tokenizer = Annotated[
    str | None,
    optional(
        "--tokenizer",
        "NAME|FOLDER",
        "What counts the rows, or bytes/4 to count roughly.  [default: the model's own]",
    ),
]
TextField = Annotated[
    str | None,
    optional(
        "--text-field",
        "NAME",
        "The field with a row's text or messages. By default the usual ones are tried.",
    ),
]


def sequence_length(usual: str) -> Any:
    """--seq-len, with what is taken where it is not given."""
    return optional("--seq-len", "N", f"Tokens in a sequence.  [default: {usual}]")


def effective_batch(usual: str) -> Any:
    """--effective-batch, with what is taken where it is not given."""
    words = "Sequences in one optimizer step, on every rung."
    return optional("--effective-batch", "N", f"{words}  [default: {usual}]")
