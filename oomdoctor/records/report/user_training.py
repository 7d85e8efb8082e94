"""The training of the user's own files (`--from`): a configuration, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import KEYS
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.job.result import Evidence

YOURS = "yours"
"""The label of the configuration of `--from`."""
Aim = Literal["fits", "faster"]


OF_SHELLS = (".sh", ".bash", ".sbatch", ".slurm")
"""The ends of the names of shell scripts."""
COMMAND_LINE = " (command line)"
"""Stands behind the name of what a typed command starts."""


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file as plain values. `lines` are by the dotted path of a setting.

    `asked` is the format that the command line names. `effective` are the values that the
    program's own parser arrives at, with its defaults, and `parser` is that library. `left_out` is
    what could not be read at all, such as expressions of a script. `calls` are the names that a
    script calls, and `library` is the release that it runs with, such as "trl 1.16.0", with words
    that say where this is from.
    """

    path: str
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    asked: FormatName | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    parser: str | None = None
    left_out: tuple[NotTaken, ...] = ()
    calls: frozenset[str] = frozenset()
    library: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingFile:
    """A file of the user, and the format it was read as.

    `parser` is the library whose parser checked it, such as "transformers 5.23.0"; None if the
    file was read by the published names of the settings alone.
    """

    path: str
    format: FormatName
    parser: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A setting of a file that decides `key`. `line` counts from 1; None if unknown.

    `key` is empty if its value, such as null, leaves the key to the program's default.
    """

    key: str
    name: str
    value: str
    file: str
    line: int | None


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A setting of a file that is not in the configuration, and why.

    `matters` is False for settings that change neither memory nor speed.
    """

    name: str
    value: str
    file: str
    line: int | None
    reason: str
    matters: bool


@dataclass(frozen=True, slots=True)
class Assumed:
    """A key of the configuration that no file sets: its value, and where that is from."""

    key: str
    value: str
    reason: str


def by_reason(
    assumed: Iterable[Assumed], config: TrainConfig, *, all_of: bool = False
) -> list[str]:
    """`optimizer adamw_torch, attention sdpa (the default of TRL)`.

    Only if `all_of`, also what is off, and what means nothing in the configuration.
    """
    by_cause: dict[str, list[str]] = {}
    for each in assumed:
        off = each.value in ("false", "none", "default")
        if all_of or (not off and KEYS[each.key].means(config)):
            by_cause.setdefault(each.reason, []).append(f"{each.key} {each.value}")
    return [f"{', '.join(keys)} ({reason})" for reason, keys in by_cause.items()]


NO_LENGTH = "no file says how long a row is; --seq-len does"
"""The reason of a sequence length that is only usual."""


@dataclass(frozen=True, slots=True)
class UserTraining:
    """The user's job, as the files describe it.

    `task` is None if no file says it. `config` has its settings and its micro-batch size.
    """

    files: tuple[TrainingFile, ...]
    model: str | None
    revision: str | None
    task: str | None
    config: TrainConfig
    said: tuple[Said, ...]
    not_taken: tuple[NotTaken, ...]
    assumed: tuple[Assumed, ...]

    @property
    def length_known(self) -> bool:
        """Whether a file or its program says the sequence length."""
        return all(setting.reason != NO_LENGTH for setting in self.assumed)


@dataclass(frozen=True, slots=True)
class ChangedLine:
    """A line to change in a file: setting `name` from `before` to `after`.

    `before` is None if the file does not have it, `after` is None if the line has to go. `file` is
    None for an environment variable. `text` is what a script says then: the changed line, or a new
    keyword of `call`; None in other files.
    """

    file: str | None
    name: str
    before: str | None
    after: str | None
    line: int | None
    text: str | None = None
    call: str | None = None


THIS_LINE = "instead of this line"
"""The place of code that replaces a whole statement."""


@dataclass(frozen=True, slots=True)
class AddedCode:
    """Code to paste into a script, for what no setting of it says, such as an adapter.

    It belongs below the line `line`, or replaces the call there, or is a new keyword of that call,
    or stands around the forward pass, whose line is not known. `where` says so in words. `imports`
    are the lines that it needs at the top of the script.
    """

    file: str
    place: Literal["below", "instead", "keyword", "around"]
    line: int | None
    where: str
    code: str
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class YourChange:
    """A change of the user's configuration, or several together, with which it fits or is faster.

    `rung` is the changed configuration, as `--rung` reads it, and `lines` are what to change in the
    files, with `code` to paste into a script. `speedup` is against the user's own configuration;
    None if one of the speeds is unknown. `evidence` says whether it was measured or simulated.
    On the CPU, `peak_device_bytes` counts only tensors.
    """

    change: str
    rung: str
    lines: tuple[ChangedLine, ...]
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    peak_device_bytes: int | None
    tokens_per_s: float | None
    speedup: float | None
    evidence: Evidence = "predicted"
    code: tuple[AddedCode, ...] = ()


@dataclass(frozen=True, slots=True)
class YourRung:
    """The answer about the configuration of --from; `key` is the key of its row in `results`.

    With `aim` "fits" the configuration does not fit, and `changes` are changes or sets of them with
    which it does, the cheapest first. With "faster" it fits, and `changes` make it faster. Without
    any, `reason` says why. `tried` are all changes that were simulated, in a probe those that were
    measured.
    """

    key: str
    label: str
    aim: Aim | None
    changes: tuple[YourChange, ...]
    tried: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True, slots=True)
class Proof:
    """What a run of the changed training on emulated GPUs shows.

    `command` is what to type to train with the change. `before_bytes` and `peak_bytes` are the
    peaks on the device without and with it, of the fullest GPU. `fits` is None if the run shows
    nothing; `reason` says why.
    """

    command: tuple[str, ...]
    gpu: str
    before_bytes: int | None
    peak_bytes: int | None
    fits: bool | None
    reason: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AppliedRemedy:
    """A remedy of a diagnosis as a change of the user's file, or of the words of the command.

    `number` is the place of the remedy in the diagnosis, from 1. `changes` are keys of the
    configuration, `lines` what they are in the `file` and `code` what is pasted into it. `diff` is
    the change as a unified diff. `not_applied` are the remedies before it, with the reasons. With
    `written` the file has been changed, and `backup` is the file as it was. `proof` is a run
    with the change.
    """

    file: str
    number: int | None
    change: str | None
    changes: Mapping[str, str]
    lines: tuple[ChangedLine, ...]
    diff: str
    not_applied: tuple[str, ...]
    written: bool = False
    backup: str | None = None
    code: tuple[AddedCode, ...] = ()
    proof: Proof | None = None
