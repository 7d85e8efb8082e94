"""The options of all commands, declared once, and the reading of what was typed into them.

Values arrive as text and are read here rather than by typer, so that every fault of a command line
is told in one go, in oomdoctor's own words, as text or as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.units import parse_count, parse_duration, parse_size

T = TypeVar("T")
_PART = r"[A-Za-z0-9][\w.-]*"
_PAGE = re.compile(  # one part is a model from before the hub had owners
    rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({_PART}(?:/{_PART})?)"
    r"(?:/+tree/main)?/*(?:[?#].*)?"
)
_CLOSED_ID = re.compile(rf"({_PART}/{_PART})/+")
FORMATS = ("table", "markdown", "csv", "json")

# What is asked
Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A hub id, a folder with config.json, or a name from `oomdoctor models`.",
        show_default=False,
    ),
]
RecipeName = Annotated[
    str,
    typer.Option("--recipe", metavar="NAME|FILE|none", help="The ladder; see `oomdoctor recipes`."),
]
Rungs = Annotated[
    list[str] | None,
    typer.Option(
        "--rung",
        metavar="KEY=VALUE,..",
        help="Add a rung, such as method=lora,lora_rank=64. Repeatable.",
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
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="synthetic|pretrained",
        help="Random weights of the right shape, or the real checkpoint.",
    ),
]
SequenceLength = Annotated[
    str | None,
    typer.Option(
        "--seq-len",
        metavar="N",
        help="Tokens in a sequence.  [default: 2048; 64 on the CPU]",
        show_default=False,
    ),
]
EffectiveBatch = Annotated[
    str | None,
    typer.Option(
        "--effective-batch",
        metavar="N",
        help="Sequences in one optimizer step, on every rung.  [default: 16; 4 on the CPU]",
        show_default=False,
    ),
]
PlannedLength = Annotated[
    str | None,
    typer.Option(
        "--seq-len",
        metavar="N",
        help="Tokens in a sequence.  [default: 2048]",
        show_default=False,
    ),
]
PlannedBatch = Annotated[
    str | None,
    typer.Option(
        "--effective-batch",
        metavar="N",
        help="Sequences in one optimizer step, on every rung.  [default: 16]",
        show_default=False,
    ),
]
MicroBatch = Annotated[
    str | None,
    typer.Option(
        "--micro-batch",
        metavar="N",
        help="Fix the micro-batch size instead of searching for it.",
        show_default=False,
    ),
]
Evaluate = Annotated[
    bool, typer.Option("--eval", help="Also run an evaluation step, as Trainer does.")
]
EvalBatch = Annotated[
    str, typer.Option("--eval-batch", metavar="N", help="Sequences in one evaluation step.")
]
Seed = Annotated[str, typer.Option("--seed", metavar="N", help="Seed of weights and tokens.")]

# Where it runs and what it may use
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cuda, cuda:N, cpu or the UUID of a GPU.",
    ),
]
Vram = Annotated[
    str | None,
    typer.Option(
        "--vram",
        metavar="SIZE",
        help="Answer for a device of this size, such as 24GiB. By default what is free now.",
        show_default=False,
    ),
]
Headroom = Annotated[
    str,
    typer.Option(
        "--headroom", metavar="PERCENT", help="Share of the budget a rung must leave free."
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="The interpreter you train with. By default the one oomdoctor runs in.",
        show_default=False,
    ),
]
Predict = Annotated[
    bool,
    typer.Option(
        "--predict/--no-predict",
        help="Simulate first: start at the predicted micro-batch, skip the hopeless.",
    ),
]
Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Wait while another survey has the device, or stop."),
]

# What is planned for
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="CARD|SIZE",
        help="A card from `oomdoctor gpus`, or a size such as 24GiB. Repeatable: one row a card.  "
        "[default: the GPU of this machine]",
        show_default=False,
    ),
]
AllGpus = Annotated[
    bool, typer.Option("--all-gpus", help="One row a card: the fastest rung that fits, by method.")
]
Sweep = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        metavar="KEY=VALUES",
        help="How peaks grow: seq-len=512..32768 (doubling) or micro-batch=1,2,8.",
        show_default=False,
    ),
]
Why = Annotated[
    str | None,
    typer.Option(
        "--why",
        metavar="RUNG",
        help="Take one rung apart: phases, categories, largest tensors, formulas.",
        show_default=False,
    ),
]

# The data it is trained on
Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        metavar="FILE",
        help="Count the tokens of each row and answer for the longest: .jsonl, .json, .csv, .txt, "
        ".parquet. --seq-len is then what rows are packed to.",
        show_default=False,
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="NAME|FOLDER",
        help="What counts the rows, or bytes/4 to count roughly.  [default: the model's own]",
        show_default=False,
    ),
]
TextField = Annotated[
    str | None,
    typer.Option(
        "--text-field",
        metavar="NAME",
        help="The field with a row's text or messages. By default the usual ones are tried.",
        show_default=False,
    ),
]

# Where the model comes from
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="REV", help="Branch, tag or commit on the hub.", show_default=False
    ),
]
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

# Limits and going on
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="DURATION",
        help="Stop in time and print what is known, such as 30m.",
        show_default=False,
    ),
]
RungTimeout = Annotated[
    str, typer.Option("--rung-timeout", metavar="DURATION", help="End one worker after this time.")
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with a run from disk: its name, its folder, or latest.",
        show_default=False,
    ),
]

# The answer
RankBy = Annotated[
    str, typer.Option("--rank-by", metavar="KEY", help="throughput, memory or micro-batch.")
]
Tokens = Annotated[
    str, typer.Option("--tokens", metavar="COUNT", help="State the time for this many tokens.")
]
Format = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="table, markdown, csv or json.")
]
ListJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write the answer there too; .json, .csv and .md choose its format.",
        show_default=False,
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Every try, every phase, memory statistics.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


class Reader:
    """Reads the values of one command line and collects their faults; `check` raises them all."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._faults: list[str] = []

    def fault(self, option: str, message: str) -> None:
        """Add a fault of an option."""
        self._faults.append(f"{option}: {message}")

    def read(self, option: str, text: str, parse: Callable[[str], T], default: T) -> T:
        """The value of an option; `default` stands in for a faulty one until `check` raises."""
        try:
            return parse(text)
        except ValueError as error:
            self.fault(option, str(error))
            return default

    def size(self, option: str, text: str | None) -> int | None:
        """Bytes, None where the option was not given."""
        return None if text is None else self.read(option, text, parse_size, 1)

    def count(self, option: str, text: str) -> int:
        """A count such as 1M."""
        return self.read(option, text, parse_count, 1)

    def duration(self, option: str, text: str | None) -> float | None:
        """Seconds, None where the option was not given."""
        return None if text is None else self.read(option, text, parse_duration, 1.0)

    def share(self, option: str, text: str) -> float:
        """A share of the whole: `2%` and `0.02` are the same."""
        return self.read(option, text, parse_share, 0.0)

    def integer(self, option: str, text: str, minimum: int = 1, maximum: int | None = None) -> int:
        """A whole number of at least `minimum` and, if there is one, at most `maximum`."""

        def parse(value: str) -> int:
            try:
                number = int(value)
            except ValueError:
                number = minimum - 1
            if number < minimum:
                raise ValueError(f"{value!r} is not a whole number of at least {minimum}")
            if maximum is not None and number > maximum:
                raise ValueError(f"{value!r} is above {maximum}, the highest there is")
            return number

        return self.read(option, text, parse, minimum)

    def choice(self, option: str, text: str, choices: Sequence[T]) -> T:
        """One of the words; the first one stands in for a faulty one until `check` raises."""
        for word in choices:
            if word == text:
                return word
        self.fault(option, f"{text!r} is not one of {', '.join(map(str, choices))}")
        return choices[0]

    def check(self) -> None:
        """Raise a usage error with every fault found so far, if there is one."""
        if self._faults:
            raise self._error()

    def _error(self) -> OomDoctorError:
        return usage_error(
            "bad_option", "\n".join(self._faults), f"run `oomdoctor {self._command} --help`"
        )


def hub_id(name: str) -> str:
    """The id that the address of a model's page, or an id with a slash at its end, stands for.

    Anything else comes back as it is, a folder of that name as well.
    """
    page = _PAGE.fullmatch(name)
    if page is not None:
        return page[1]
    closed = _CLOSED_ID.fullmatch(name)
    return closed[1] if closed is not None and not Path(name).exists() else name


def parse_share(text: str) -> float:
    """A share from 0 to below 1, written `2%` or `0.02`.

    Raises:
        ValueError: the text is something else.
    """
    stripped = text.strip()
    try:
        share = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{text!r} is not a share below the whole; write 2% or 0.02")
    return share


def chosen_format(command: str, text: str, as_json: bool) -> str:
    """The output format, where `--json` is short for `--format json`.

    Raises:
        OomDoctorError: the format is unknown, or the two options contradict each other (exit 2).
    """
    reader = Reader(command)
    reader.choice("--format", text, FORMATS)
    if as_json and text not in ("table", "json"):
        reader.fault("--format", f"{text} and --json ask for two different documents")
    reader.check()
    return "json" if as_json else text
