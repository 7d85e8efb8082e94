"""What a program is: how its files are recognized, read and written, in one row."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.names.row import Settings, Table, exports_data, listed, settings_data
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys
from oomdoctor.stacks.rung import StackRung, learning_rate

OF_WEIGHTS = "weights"
"""Instead of an adapter's dtype: that of the weights, which the model may decide."""
Precision = Callable[[PartialConfig, RungKeys, Collection[str], str, str], tuple[str, str]]
"""The dtypes of weights and autocast, from what is said, the keys of the rung so far, the keys that
the files decide, and both dtypes without the program's rule."""
Scalar = str | int | float


@dataclass(frozen=True, slots=True)
class Beside:
    """A setting that no rung has: it changes neither memory nor speed of a training step.

    `export --from` carries it from one program to another, and `explain` reads some of them. It has
    the same meaning in several programs: `name` is transformers' name.
    A program that calls it otherwise says so in its row. `aliases` are read, never written.
    `objective` is the one that it belongs to, and `words` are the values that all programs have.
    """

    key: str
    name: str
    aliases: Sequence[str] = ()
    objective: str | None = None
    words: Sequence[str] = ()

    def value(self, told: object) -> Scalar | None:
        """The value, with numbers that YAML reads as text, such as 1e-5, as numbers. None if other
        programs do not have it.
        """
        if isinstance(told, str) and not self.words and self.key != "output_dir":
            try:
                number = float(told)
            except ValueError:
                return None
            return int(number) if number == int(number) else number
        if not isinstance(told, str | int | float) or (self.words and told not in self.words):
            return None
        return told


BESIDE = tuple(Beside(key, **row) for key, row in settings_data()["beside"].items())


@dataclass(frozen=True, slots=True)
class Program:
    """One program whose files can be read and written.

    Its names: `title` is what reads a file, and `brand` how the program is written in texts.
    `package` parses its files, and `version` is the release from which the names were taken.
    `reads` and `writes` say in the docs which files those are.
    `marks` are names that only its files have; with one of `not_with` they are another program's.
    `classes` are those that only its scripts use.

    Reading: `names` are the settings of its files, and `script` those of its scripts. `prepare`
    applies what several of its settings say together, before the common rules, and `decide` what
    it decides otherwise, after them. `precision` is its rule about dtypes, unless it never
    `autocasts`, and `adapters` its `adapter_dtype`, or none for peft's, for the reason
    `why_adapters`. `shards_alone` is whether several GPUs mean FSDP, `fills_mesh` whether GPUs
    beyond those of its mesh have copies of the model, and `offloads_checkpoints`
    whether its offloading of activations moves the inputs of checkpoints, if there are any.

    Writing: `file` is a usual name. A script is written by the module of the same name in
    `scripts`. `complete` adds to the settings of a rung what a file needs beside them. `starts` are
    the commands that start a `{file}` that it reads, on one GPU and on several. `option` is how a
    command says a setting, where it is not as `HfArgumentParser` reads it. With `own_step`, its
    step of GRPO is not TRL's. With `trainer_arguments`, its settings include all of
    `TrainingArguments`, under the same names.
    `beside` are its names of `BESIDE`, where they differ; None for those that it does not
    have. `held` are the keys that the file of a launcher holds; None if it describes a training.
    """

    name: FormatName
    title: str
    package: str
    version: str
    file: str
    brand: str = ""
    reads: str = ""
    writes: str = ""
    names: Table | None = None
    script: Table | None = None
    marks: frozenset[str] = frozenset()
    not_with: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    prepare: Callable[[PartialConfig, Collection[str]], None] | None = None
    decide: Callable[[PartialConfig, RungKeys], RungKeys] | None = None
    precision: Precision | None = None
    autocasts: bool = True
    adapters: Callable[[PartialConfig, RungKeys], str | None] | None = None
    why_adapters: str | None = None
    shards_alone: bool = False
    fills_mesh: bool = False
    offloads_checkpoints: bool = False
    complete: Callable[[StackRung, Settings], Settings] | None = None
    starts: tuple[str, ...] = ()
    option: str = ""
    own_step: bool = False
    trainer_arguments: bool = False
    beside: Mapping[str, str | None] = field(default_factory=dict)
    whole_epochs: bool = False
    held: frozenset[str] | None = None

    @property
    def is_launcher(self) -> bool:
        """Whether it only starts or shards a training that another file describes."""
        return self.held is not None

    def command(self, config: TrainConfig, file: str | None = None) -> str | None:
        """What starts the training of a file, by default of one with a usual name.

        None for a file that is not started.
        """
        if file is not None and file.endswith(".py"):
            starts: Sequence[str] = ("python {file}", "torchrun --nproc-per-node {gpus} {file}")
        else:
            starts = self.starts
        if not starts:
            return None
        sft = config.objective == "default"
        return starts[-1 if config.world_size > 1 else 0].format(
            file=shlex.quote(file or self.file),
            gpus=config.world_size,
            kind="full" if config.method == "full" else "lora",
            stage="sft" if sft else "rlhf",
            objective="sft" if sft else config.objective,
        )

    def name_of(self, setting: Beside) -> str | None:
        """What it calls a setting that no rung has; None if it has no such setting."""
        return self.beside.get(setting.key, None if self.is_launcher else setting.name)


def with_examples(program: str, rung: StackRung, settings: Settings) -> Settings:
    """The settings of a file with a data set and a learning rate, which are to be replaced."""
    examples = exports_data(program)
    settings = settings | examples["objectives"][rung.config.objective] | examples["settings"]
    return settings | {"learning_rate": learning_rate(rung.config)}


def facts(name: FormatName) -> dict[str, Any]:
    """The fields of a program that are texts and names, as `data/stacks/settings.toml` has them.

    An empty name `beside` a rung stands for a setting that the program does not have.
    """
    row: dict[str, Any] = {"name": name, **settings_data()[f"program-{name}"]}
    row["starts"] = tuple(row.get("starts", ()))
    row |= {kind: listed(row[kind]) for kind in ("marks", "not_with", "held") if kind in row}
    beside: dict[str, str] = row.get("beside", {})
    return row | {"beside": {key: own or None for key, own in beside.items()}}
