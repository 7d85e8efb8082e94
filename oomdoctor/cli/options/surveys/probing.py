"""The options of `probe`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from oomdoctor.cli.options import ADVANCED, COMMON, DEVICE, RUN, completion, option
from oomdoctor.cli.options.answer import AnswerOptions, Quiet, RankOptions, Verbose
from oomdoctor.cli.options.surveys.ladder import LadderOptions


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """A command line of `probe`."""

    vram: Annotated[
        str | None,
        option(
            "--vram",
            metavar="SIZE",
            panel=COMMON,
            help="Answer for a device with this much memory, for example 24GiB.  "
            "[default: what is free now]",
        ),
    ] = None
    emulate: Annotated[
        str | None,
        option(
            "--emulate",
            metavar="CARD|SIZE|NxCARD",
            panel=COMMON,
            completion=completion.gpus,
            help="Run on an emulated card that need not be here: exact memory, no speeds. Needs a "
            "CUDA build of torch.",
        ),
    ] = None
    ladder: LadderOptions = field(
        default_factory=LadderOptions,
        metadata={
            "defaults": {"seq_len": "2048; 64 on the CPU", "effective_batch": "16; 4 on the CPU"}
        },
    )

    device: Annotated[
        str,
        option(
            "--device",
            metavar="DEVICE",
            panel=DEVICE,
            help="Device to measure on: auto, cuda, cuda:N, cpu or the UUID of a GPU.",
        ),
    ] = "auto"
    ranks: Annotated[
        str,
        option(
            "--ranks",
            metavar="1|all",
            panel=DEVICE,
            help="On several emulated GPUs: run one rank that stands for all, or all of them.",
        ),
    ] = "1"
    nodes: Annotated[
        str,
        option(
            "--nodes",
            metavar="N",
            panel=DEVICE,
            help="Spread the ranks of --gpus over N nodes of the Slurm job that this runs in.",
        ),
    ] = "1"
    wait: Annotated[
        bool,
        option(
            "--wait/--no-wait",
            panel=DEVICE,
            help="Wait while another survey uses the device, or stop with an error.",
        ),
    ] = False

    resume: Annotated[
        str | None,
        option(
            "--resume",
            metavar="RUN",
            panel=RUN,
            completion=completion.probes,
            help="Continue a probe from disk: its name, its folder, or latest.",
        ),
    ] = None
    predict: Annotated[
        bool,
        option(
            "--predict/--no-predict",
            panel=RUN,
            help="Simulate first: start at the predicted micro-batch size and skip rungs that "
            "cannot fit.",
        ),
    ] = True
    time_limit: Annotated[
        str | None,
        option(
            "--time-limit",
            metavar="DURATION",
            panel=RUN,
            help="Finish within this time and print the results so far, for example 30m.",
        ),
    ] = None
    rung_timeout: Annotated[
        str,
        option(
            "--rung-timeout",
            metavar="DURATION",
            panel=RUN,
            help="Stop a worker process after this time.",
        ),
    ] = "10m"
    evaluate: Annotated[
        bool, option("--eval", panel=RUN, help="Also run an evaluation step, as Trainer does.")
    ] = False
    eval_batch: Annotated[
        str,
        option("--eval-batch", metavar="N", panel=RUN, help="Sequences per evaluation step."),
    ] = "8"

    snapshot: Annotated[
        str | None,
        option(
            "--snapshot",
            metavar="RUNG",
            panel=RUN,
            help="Run only this rung, and record a memory snapshot of it.",
        ),
    ] = None
    trace: Annotated[
        str | None,
        option(
            "--trace",
            metavar="RUNG",
            panel=RUN,
            help="Run only this rung, and record a trace of one step for Perfetto.",
        ),
    ] = None

    ranking: RankOptions = field(default_factory=RankOptions)
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
    quiet: Quiet = False

    weights: Annotated[
        str,
        option(
            "--weights",
            metavar="synthetic|pretrained",
            panel=ADVANCED,
            help="Random weights of the right shape, or the real checkpoint.",
        ),
    ] = "synthetic"
    seed: Annotated[
        str, option("--seed", metavar="N", panel=ADVANCED, help="Seed for weights and tokens.")
    ] = "0"
