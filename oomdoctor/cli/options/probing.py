"""The options that only `probe` has: the device that measures, and how a survey goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from oomdoctor.cli.options import optional
from oomdoctor.cli.options.ladder import effective_batch, sequence_length

SequenceLength = Annotated[str | None, sequence_length("2048; 64 on the CPU")]
EffectiveBatch = Annotated[str | None, effective_batch("16; 4 on the CPU")]

# Where it runs and what it may use
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="auto, cuda, cuda:N, cpu or the UUID of a GPU."
    ),
]
Vram = Annotated[
    str | None,
    optional(
        "--vram",
        "SIZE",
        "Answer for a device of this size, such as 24GiB. By default what is free now.",
    ),
]
Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Wait while another survey has the device, or stop."),
]

# What is run
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="synthetic|pretrained",
        help="Random weights of the right shape, or the real checkpoint.",
    ),
]
Evaluate = Annotated[
    bool, typer.Option("--eval", help="Also run an evaluation step, as Trainer does.")
]
EvalBatch = Annotated[
    str, typer.Option("--eval-batch", metavar="N", help="Sequences in one evaluation step.")
]
Seed = Annotated[str, typer.Option("--seed", metavar="N", help="Seed of weights and tokens.")]
Predict = Annotated[
    bool,
    typer.Option(
        "--predict/--no-predict",
        help="Simulate first: start at the predicted micro-batch, skip the hopeless.",
    ),
]

# Limits and going on
TimeLimit = Annotated[
    str | None,
    optional("--time-limit", "DURATION", "Stop in time and print what is known, such as 30m."),
]
RungTimeout = Annotated[
    str, typer.Option("--rung-timeout", metavar="DURATION", help="End one worker after this time.")
]
Resume = Annotated[
    str | None,
    optional("--resume", "RUN", "Go on with a run from disk: its name, its folder, or latest."),
]
