"""The options of `plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from oomdoctor.cli.options import ADVANCED, CARDS, COMMON, OUTPUT, RUN, completion, option
from oomdoctor.cli.options.answer import AnswerOptions, Quiet, RankOptions
from oomdoctor.cli.options.surveys.ladder import LadderOptions


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """A command line of `plan`."""

    gpu: Annotated[
        list[str] | None,
        option(
            "--gpu",
            metavar="CARD|SIZE",
            panel=COMMON,
            completion=completion.gpus,
            help="A card from `oomdoctor gpus`, or a size such as 24GiB. Repeat to compare cards.  "
            "[default: the GPU of this machine]",
        ),
    ] = None
    ladder: LadderOptions = field(
        default_factory=LadderOptions,
        metadata={"defaults": {"seq_len": "2048", "effective_batch": "16"}},
    )

    all_gpus: Annotated[
        bool,
        option(
            "--all-gpus",
            panel=CARDS,
            help="Compare all known cards: the best rung of each method that fits.",
        ),
    ] = False
    fewest: Annotated[
        bool,
        option(
            "--min",
            panel=CARDS,
            help="Find the fewest GPUs on which each rung fits, in the range of --gpus A..B.",
        ),
    ] = False
    interconnect: Annotated[
        str,
        option(
            "--interconnect",
            metavar="LINK",
            panel=CARDS,
            help="What links the GPUs: auto, nvlink or pcie; or the nodes: infiniband-hdr, "
            "infiniband-ndr, ethernet-10g, ethernet-25g or ethernet-100g.",
        ),
    ] = "auto"
    host_memory: Annotated[
        str | None,
        option(
            "--host-memory",
            metavar="SIZE",
            panel=CARDS,
            help="Host memory of each machine; warns about rungs whose ranks need more.",
        ),
    ] = None
    min_vram: Annotated[
        str | None,
        option(
            "--min-vram",
            metavar="SIZE",
            panel=CARDS,
            help="Leave out cards with less memory, for example 24GiB.",
        ),
    ] = None
    sort: Annotated[
        str | None,
        option(
            "--sort",
            metavar="KEY",
            panel=CARDS,
            completion=completion.one_of(("speed", "memory", "name", "cost")),
            help="Order of several cards: speed, memory, name or cost.  "
            "[default: speed; cost with --price]",
        ),
    ] = None
    price: Annotated[
        Path | None,
        option(
            "--price",
            metavar="FILE",
            panel=CARDS,
            help="What an hour of each card costs (.csv or .json with card and price); adds the "
            "cost of a million tokens.",
        ),
    ] = None
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

    snapshot: Annotated[
        str | None,
        option(
            "--snapshot",
            metavar="RUNG",
            panel=RUN,
            help="Simulate only this rung, and write it as a memory snapshot.",
        ),
    ] = None

    solve: Annotated[
        str | None,
        option(
            "--solve",
            metavar="SETTING",
            panel=RUN,
            completion=completion.one_of(("seq-len", "micro-batch", "lora-rank")),
            help="Find the largest seq-len, micro-batch or lora-rank that still fits.",
        ),
    ] = None

    verify: Annotated[
        bool,
        option(
            "--verify",
            panel=RUN,
            help="Also run the best rungs and close calls on the emulated card. Needs a CUDA build "
            "of torch.",
        ),
    ] = False

    with_: Annotated[
        list[str] | None,
        option(
            "--with",
            metavar="NAME==VERSION,..",
            panel=ADVANCED,
            help="Simulate with other library versions, such as transformers==4.51.3. pip installs "
            "them once into a separate environment.",
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
