"""The options of `probe`."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomdoctor.cli.options import ADVANCED, COMMON, DEVICE, RUN, completion, declare, switch
from oomdoctor.cli.options.answer import AnswerOptions, Quiet, RankOptions, Verbose
from oomdoctor.cli.options.ladder import LadderOptions


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """A command line of `probe`."""

    vram: str | None = declare(
        "--vram SIZE",
        COMMON,
        "Answer for a device with this much memory, for example 24GiB.  "
        "[default: what is free now]",
    )
    emulate: str | None = declare(
        "--emulate CARD|SIZE|NxCARD",
        COMMON,
        "Run on an emulated card that need not be here: exact memory, no speeds. Needs a "
        "CUDA build of torch.",
        completion=completion.gpus,
    )
    ladder: LadderOptions = field(
        default_factory=LadderOptions,
        metadata={
            "defaults": {"seq_len": "2048; 64 on the CPU", "effective_batch": "16; 4 on the CPU"}
        },
    )

    device: str = declare(
        "--device DEVICE",
        DEVICE,
        "Device to measure on: auto, cuda, cuda:N, cpu or the UUID of a GPU.",
        default="auto",
    )
    ranks: str = declare(
        "--ranks 1|all",
        DEVICE,
        "On several emulated GPUs: run one rank that stands for all, or all of them.",
        default="1",
    )
    nodes: str = declare(
        "--nodes N",
        DEVICE,
        "Spread the ranks of --gpus over N nodes of the Slurm job that this runs in.",
        default="1",
    )
    wait: bool = switch(
        "--wait/--no-wait",
        DEVICE,
        "Wait while another survey uses the device, or stop with an error.",
    )

    resume: str | None = declare(
        "--resume RUN",
        RUN,
        "Continue a probe from disk: its name, its folder, or latest.",
        completion=completion.probes,
    )
    predict: bool = declare(
        "--predict/--no-predict",
        RUN,
        "Simulate first: start at the predicted micro-batch size and skip rungs that cannot fit.",
        default=True,
    )
    time_limit: str | None = declare(
        "--time-limit DURATION",
        RUN,
        "Finish within this time and print the results so far, for example 30m.",
    )
    rung_timeout: str = declare(
        "--rung-timeout DURATION", RUN, "Stop a worker process after this time.", default="10m"
    )
    evaluate: bool = switch("--eval", RUN, "Also run an evaluation step, as Trainer does.")
    eval_batch: str = declare("--eval-batch N", RUN, "Sequences per evaluation step.", default="8")

    snapshot: str | None = declare(
        "--snapshot RUNG", RUN, "Run only this rung, and record a memory snapshot of it."
    )
    trace: str | None = declare(
        "--trace RUNG", RUN, "Run only this rung, and record a trace of one step for Perfetto."
    )

    ranking: RankOptions = field(default_factory=RankOptions)
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Verbose = False
    quiet: Quiet = False

    weights: str = declare(
        "--weights synthetic|pretrained",
        ADVANCED,
        "Random weights of the right shape, or the real checkpoint.",
        default="synthetic",
    )
    seed: str = declare("--seed N", ADVANCED, "Seed for weights and tokens.", default="0")
