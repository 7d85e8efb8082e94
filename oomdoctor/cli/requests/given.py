"""What the options of `explain` tell about the training: its model, its sizes, its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomdoctor.cli.options.reader import Reader, hub_id

if TYPE_CHECKING:
    from oomdoctor.explain.training.settings import Given
    from oomdoctor.records.model import ModelSpec


def read_given(
    reader: Reader,
    model: str | None,
    seq_len: str | None,
    micro_batch: str | None,
    config: Path | None,
) -> tuple[Given, tuple[str, ...]]:
    """What the options tell, and notes on it; the faults that `reader` has are told first.

    Raises:
        OomDoctorError: faults of the command line, all at once; the configuration cannot be read;
            the model cannot be had.
    """
    from oomdoctor.explain.training.settings import Given, setup_of

    length = None if seq_len is None else reader.integer("--seq-len", seq_len)
    batch = None if micro_batch is None else reader.integer("--micro-batch", micro_batch)
    reader.check()
    settings: Mapping[str, Any] = {}
    if config is not None:
        from oomdoctor.system.train_config import read_train_config

        settings = read_train_config(config)
    given = Given(
        sequence_length=length,
        micro_batch_size=batch,
        settings=settings,
        settings_source=None if config is None else config.name,
    )
    if model is not None:
        resolved, notes = _resolve(model)
        return replace(given, model=resolved), notes
    named = setup_of(given, {}).model
    if named is None:
        return given, ()
    spec = built_in(named)
    if spec is None:
        note = f"{config} names the model {named}, whose sizes are not built in: add --model"
        return given, (note,)
    return replace(given, model=spec, model_origin=str(config)), ()


def _resolve(name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model of --model; built-in facts first, because they need no import and no network."""
    name = hub_id(name)
    spec = None if Path(name).exists() else built_in(name)
    if spec is not None:
        return spec, ()
    from oomdoctor.records.model import ModelRef
    from oomdoctor.system.models.hub import resolve_with_notes

    return resolve_with_notes(ModelRef(name=name))


def built_in(name: str) -> ModelSpec | None:
    """A model of the built-in facts, None if it is not among them."""
    from oomdoctor.system.catalogue import find_model

    if find_model(name) is None:
        return None
    from oomdoctor.records.model import ModelRef
    from oomdoctor.system.models.hub import resolve

    return resolve(ModelRef(name=name, source="catalogue"))
