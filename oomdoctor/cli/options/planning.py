"""The options of `plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from oomdoctor.cli.options import COMMON, OUTPUT, RUN, option
from oomdoctor.cli.options.answer import AnswerOptions, Quiet, RankOptions
from oomdoctor.cli.options.ladder import LadderOptions


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """A command line of `plan`."""

    gpu: Annotated[
        list[str] | None,
        option(
            "--gpu",
            metavar="CARD|SIZE",
            panel=COMMON,
            help="A card from `oomdoctor gpus`, or a size such as 24GiB. Repeat to compare cards.  "
            "[default: the GPU of this machine]",
        ),
    ] = None
    ladder: LadderOptions = field(default_factory=LadderOptions)

    all_gpus: Annotated[
        bool,
        option(
            "--all-gpus",
            panel=RUN,
            help="Compare all known cards: the fastest rung that fits, for each method.",
        ),
    ] = False
    sweep: Annotated[
        str | None,
        option(
            "--sweep",
            metavar="KEY=VALUES",
            panel=RUN,
            help="Show how peak memory grows: seq-len=512..32768 (doubling) or micro-batch=1,2,8.",
        ),
    ] = None
    why: Annotated[
        str | None,
        option(
            "--why",
            metavar="RUNG",
            panel=RUN,
            help="Break one rung down into phases, categories, largest tensors and formulas.",
        ),
    ] = None

    ranking: RankOptions = field(default_factory=RankOptions)
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: Annotated[
        bool,
        option(
            "--verbose",
            "-v",
            panel=OUTPUT,
            help="Show every micro-batch size, every phase and memory statistics.",
        ),
    ] = False
    quiet: Quiet = False
