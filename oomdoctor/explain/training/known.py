"""What is known about a training: from flags, a configuration file, the log and the traceback.

The first source that has a value wins, and its origin is recorded. Last come the defaults of the
program that reads the file. Nothing is assumed here: unknown values are None. `assumed` adds the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomdoctor.explain.evidence import SnapshotEvidence
from oomdoctor.explain.training.told import told
from oomdoctor.package_data import data_of
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.report.diagnosis import Frame, SettingValue
from oomdoctor.records.report.user_training import UserTraining
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys, only
from oomdoctor.stacks.programs import recognize


@dataclass(frozen=True, slots=True)
class Given:
    """What the user passed on the command line. `settings` is the content of --config, as read.

    `training` is what its program makes of it, None if that is not known. `reread` reads it
    again for the config.json of a model and the releases of packages that a log names.
    `snapshots` are the failed requests of a memory snapshot.
    `model_origin` says what named the model: "--model", the configuration file or the log.
    `short_bytes` is by how much the whole training exceeds the GPU, if a run past its memory
    showed it. `batch_divisor` is by what a replay found that the micro-batch must be divided.
    """

    model: ModelSpec | None = None
    model_origin: str = "--model"
    sequence_length: int | None = None
    micro_batch_size: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_source: str | None = None
    training: UserTraining | None = None
    reread: Callable[[Mapping[str, Any], Mapping[str, str]], UserTraining | None] | None = None
    snapshots: tuple[SnapshotEvidence, ...] = ()
    short_bytes: int | None = None
    batch_divisor: int | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """A training as far as it is known, and by key where each value came from.

    `zero_stage` is known where DeepSpeed runs it.
    """

    values: PartialConfig = field(default_factory=PartialConfig)
    origins: Mapping[str, str] = field(default_factory=dict)


PROGRAM = "the program"
_FEW = 0.2  # trained parameters, of all: adapters
"""The origin of what the program decides that reads the file of --config."""
OF_MODEL = ("weights_dtype", "lora_targets")
"""What the model decides where the file does not."""

# A field, its value, and what a frame of the traceback shows if the field has that value.
_SEEN: list[tuple[str, Any, str]] = data_of("logged_settings.toml")["seen_in_frames"]


def setup_of(
    given: Given,
    logged: Mapping[str, SettingValue],
    frames: Sequence[Frame] = (),
    world_size: int | None = None,
) -> Setup:
    """Everything known from flags, --config, the log's settings and the frames, in this order."""
    values: PartialConfig = {}
    origins: dict[str, str] = {}

    def learn(key: str, value: object, origin: str) -> None:
        if value is not None and key not in values:
            values.update(only(key, value))
            origins[key] = origin

    learn("micro_batch_size", given.micro_batch_size, "--micro-batch")
    learn("sequence_length", given.sequence_length, "--seq-len")
    learn("model", given.model.id if given.model else None, given.model_origin)
    for name, value in told(given.settings, recognize(given.settings)).items():
        learn(name, value, given.settings_source or "--config")
    for name, value in told(logged, None).items():
        learn(name, value, "the log")
    for name, value in _from_frames(frames):
        learn(name, value, "the traceback")
    trained, whole = (logged.get(f"{name}_parameters") for name in ("trainable", "all"))
    if isinstance(trained, int) and isinstance(whole, int) and trained < _FEW * whole:
        learn("method", "lora", "the log")
    learn("world_size", world_size, "the log")
    for name, value in _of_program(given):
        learn(name, value, PROGRAM)
    return Setup(values, origins)


def _of_program(given: Given) -> Iterator[tuple[str, Any]]:
    """What the file's program makes of it: defaults, and what follows from settings together.

    A length that is only usual does not explain what a snapshot shows.
    """
    if given.training is None:
        return
    config = given.training.config
    if isinstance(config.micro_batch_size, int):
        yield "micro_batch_size", config.micro_batch_size
        yield "accumulation_steps", max(1, config.rank_batch_size() // config.micro_batch_size)
    left = {"micro_batch_size", *(OF_MODEL if given.model is None else ())}
    if given.snapshots and not given.training.length_known:
        left.add("sequence_length")
    for key in RungKeys.__annotations__.keys() - left:
        yield key, getattr(config, key)


def _from_frames(frames: Sequence[Frame]) -> Iterator[tuple[str, Any]]:
    texts = [f"{f.file} {f.function} {f.code or ''}".replace("\\", "/") for f in frames]
    for name, value, pattern in _SEEN:
        if any(re.search(pattern, text) for text in texts):
            yield name, value
    layers = [t for t in texts if re.search(r"/modeling_\w+\.py forward\b", t)]
    if len(layers) >= 3:  # model, layer, part of it: a checkpoint would be between
        yield "activation_checkpointing", "none"
