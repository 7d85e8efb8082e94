"""What the options of `explain` say about the training: its model, sizes and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomdoctor.cli.options.explaining import ExplainOptions
from oomdoctor.cli.requests.reader import Reader, hub_id
from oomdoctor.errors import OomDoctorError
from oomdoctor.runs.explained import built_in

if TYPE_CHECKING:
    from oomdoctor.explain.training.known import Given
    from oomdoctor.records.model import ModelRef, ModelSpec, SourceChoice


# Errors of a model that is not on this machine.
_ELSEWHERE = frozenset(
    {"gated", "bad_token", "model_not_found", "not_cached", "offline", "hub_unreachable",
     "cache_unwritable", "no_huggingface_hub"}
)  # fmt: skip


def read_given(reader: Reader, options: ExplainOptions) -> tuple[Given, tuple[str, ...]]:
    """What the options say, and notes for the report.

    A model that cannot be found or read is a note: the text is explained without it.

    Raises:
        OomDoctorError: `reader` has collected errors; the configuration cannot be read.
    """
    from oomdoctor.explain.training.known import Given, setup_of

    model, config = options.model, options.config or options.apply
    length = batch = None
    if options.seq_len is not None:
        length = reader.sized("--seq-len", options.seq_len)
    if options.micro_batch is not None:
        batch = reader.sized("--micro-batch", options.micro_batch)
    reader.check()
    settings: Mapping[str, Any] = {}
    if config is not None:
        settings = _settings_in(config, "--config" if options.config else "--apply")
    given = Given(
        sequence_length=length,
        micro_batch_size=batch,
        settings=settings,
        settings_source=None if config is None else config.name,
    )
    if model is not None:
        try:
            resolved, notes = _resolve(model)
        except OomDoctorError as error:
            return given, (_without(error),)
        missing = _missing_sizes(resolved)
        if missing:
            text = f"{resolved.id}: config.json has no usable {', '.join(missing)}"
            return given, (*notes, f"explained without the model: {text}")
        return replace(given, model=resolved), notes
    named = setup_of(given, {}).model
    if named is None:
        return given, ()
    spec = built_in(named)
    if spec is None:
        note = f"{config} names the model {named}, which is not built in; add --model"
        return given, (note,)
    return replace(given, model=spec, model_origin=str(config)), ()


def _settings_in(path: Path, option: str) -> Mapping[str, Any]:
    """The settings of a training file; a script in Python is read, never run."""
    from oomdoctor.system.train_config import read_text, read_train_config

    if path.suffix != ".py":
        return read_train_config(path, option)
    from oomdoctor.stacks.reading.script import parse

    return parse(str(path), read_text(path, option)).values


def _without(error: OomDoctorError) -> str:
    """The note about a model that cannot be used, with what to do."""
    hint = f"; {error.hint}" if error.hint else ""
    if error.code in _ELSEWHERE:
        hint += "; or pass a name from `oomdoctor models`, which are built in"
    return f"explained without the model: {error.message}{hint}"


def _missing_sizes(model: ModelSpec) -> list[str]:
    """The sizes without which nothing can be computed, by their usual names in config.json."""
    from oomdoctor.analysis.memory.shape import shape_of
    from oomdoctor.records.facts.architectures import SIZE_NAMES

    shape = shape_of(model.config)
    needed = ("layers", "hidden", "heads", "vocabulary")
    return [SIZE_NAMES[name][0] for name in needed if getattr(shape, name) is None]


def _resolve(name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model of --model; built-in facts first, because they need no import and no network."""
    name = hub_id(name)
    spec = None if Path(name).exists() else built_in(name)
    if spec is not None:
        return spec, ()
    from oomdoctor.records.model import ModelRef
    from oomdoctor.system.models.hub import resolve_with_notes

    return resolve_with_notes(ModelRef(name=name))


def model_of(name: str, given: Given, options: ExplainOptions) -> ModelRef:
    """The model that a diagnosis names, and where a simulation may look it up.

    A name from a log or a configuration file is only looked up in the built-in facts: a text must
    not make us open a path or contact a server.
    """
    from oomdoctor.records.model import ModelRef

    if options.model is None or given.model is None or given.model.source == "catalogue":
        return ModelRef(name=name, source="catalogue")
    source: SourceChoice = "local" if given.model.source == "local" else "auto"
    return ModelRef(name=hub_id(options.model), source=source)
