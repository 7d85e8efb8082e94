"""The options that only `plan` has: the cards, and the questions beyond what fits."""

from __future__ import annotations

from typing import Annotated

import typer

from oomdoctor.cli.options import optional
from oomdoctor.cli.options.ladder import effective_batch, sequence_length

SequenceLength = Annotated[str | None, sequence_length("2048")]
EffectiveBatch = Annotated[str | None, effective_batch("16")]
Gpus = Annotated[
    list[str] | None,
    optional(
        "--gpu",
        "CARD|SIZE",
        "A card from `oomdoctor gpus`, or a size such as 24GiB. Repeatable: one row a card.  "
        "[default: the GPU of this machine]",
    ),
]
AllGpus = Annotated[
    bool, typer.Option("--all-gpus", help="One row a card: the fastest rung that fits, by method.")
]
Sweep = Annotated[
    str | None,
    optional(
        "--sweep",
        "KEY=VALUES",
        "How peaks grow: seq-len=512..32768 (doubling) or micro-batch=1,2,8.",
    ),
]
Why = Annotated[
    str | None,
    optional(
        "--why", "RUNG", "Take one rung apart: phases, categories, largest tensors, formulas."
    ),
]
