"""The options of `plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oomdoctor.cli.options import ADVANCED, CARDS, COMMON, OUTPUT, RUN, completion, declare, switch
from oomdoctor.cli.options.answer import AnswerOptions, Quiet, RankOptions
from oomdoctor.cli.options.ladder import LadderOptions


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """A command line of `plan`."""

    gpu: list[str] | None = declare(
        "--gpu CARD|SIZE",
        COMMON,
        "A card from `oomdoctor gpus`, or a size such as 24GiB. Repeat to compare cards.  "
        "[default: the GPU of this machine]",
        completion=completion.gpus,
    )
    ladder: LadderOptions = field(
        default_factory=LadderOptions,
        metadata={"defaults": {"seq_len": "2048", "effective_batch": "16"}},
    )

    all_gpus: bool = switch(
        "--all-gpus", CARDS, "Compare all known cards: the best rung of each method that fits."
    )
    fewest: bool = switch(
        "--min", CARDS, "Find the fewest GPUs on which each rung fits, in the range of --gpus A..B."
    )
    interconnect: str = declare(
        "--interconnect LINK",
        CARDS,
        "What links the GPUs: auto, nvlink or pcie; or the nodes: infiniband-hdr, "
        "infiniband-ndr, ethernet-10g, ethernet-25g or ethernet-100g.",
        default="auto",
    )
    host_memory: str | None = declare(
        "--host-memory SIZE",
        CARDS,
        "Host memory of each machine; warns about rungs whose ranks need more.",
    )
    min_vram: str | None = declare(
        "--min-vram SIZE", CARDS, "Leave out cards with less memory, for example 24GiB."
    )
    sort: str | None = declare(
        "--sort KEY",
        CARDS,
        "Order of several cards: speed, memory, name or cost.  [default: speed; cost with --price]",
        completion=completion.one_of(("speed", "memory", "name", "cost")),
    )
    price: Path | None = declare(
        "--price FILE",
        CARDS,
        "What an hour of each card costs (.csv or .json with card and price); adds the "
        "cost of a million tokens.",
    )
    sweep: str | None = declare(
        "--sweep KEY=VALUES",
        RUN,
        "Show how peak memory grows: seq-len=512..32768 (doubling) or micro-batch=1,2,8.",
    )
    why: str | None = declare(
        "--why RUNG",
        RUN,
        "Break one rung down into phases, categories, largest tensors and formulas.",
    )

    snapshot: str | None = declare(
        "--snapshot RUNG", RUN, "Simulate only this rung, and write it as a memory snapshot."
    )

    solve: str | None = declare(
        "--solve SETTING",
        RUN,
        "Find the largest seq-len, micro-batch or lora-rank that still fits.",
        completion=completion.one_of(("seq-len", "micro-batch", "lora-rank")),
    )

    verify: bool = switch(
        "--verify",
        RUN,
        "Also run the best rungs and close calls on the emulated card. Needs a CUDA build "
        "of torch.",
    )

    with_: list[str] | None = declare(
        "--with NAME==VERSION,..",
        ADVANCED,
        "Simulate with other library versions, such as transformers==4.51.3. pip installs "
        "them once into a separate environment.",
    )

    ranking: RankOptions = field(default_factory=RankOptions)
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = switch(
        "--verbose, -v", OUTPUT, "Show every micro-batch size, every phase and memory statistics."
    )
    quiet: Quiet = False
