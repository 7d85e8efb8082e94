"""Finds a pipeline of diffusers and its parts: in a folder, the cache, the hub, or built in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError
from oomdoctor.package_data import data_of
from oomdoctor.records.job.model import ModelRef
from oomdoctor.system.catalogue import find_model
from oomdoctor.system.models import fetch

INDEX = "model_index.json"
_CONFIGS = ("config.json", "scheduler_config.json")


@dataclass(frozen=True, slots=True)
class Part:
    """A model or a scheduler in a pipeline: `library` and class, config, type of its weights.

    The config says what differs from the defaults of the class. A tokenizer has no config: it is
    made for the text encoder of the same number. `parameters` is the published count, if any.
    """

    library: str
    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    parameters: int | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline by its id: the parts by their folders.

    Without `class_name` it is one part, in the folder "". `path` is the folder of its files, None
    for a built-in one.
    """

    id: str
    class_name: str | None
    parts: Mapping[str, Part]
    aliases: tuple[str, ...] = ()
    path: Path | None = None


def locate_pipeline(ref: ModelRef) -> Pipeline | None:
    """The pipeline that `ref` names: a folder, the cache, the hub, built in; None if none has it.

    Raises:
        OSError, ValueError: its files cannot be read.
    """
    local = Path(ref.name)
    if local.is_dir():
        return _read(ref.name, local)
    with suppress(OomDoctorError):
        folder = fetch.small_files(ref, INDEX)
        if (pipeline := _read(ref.name, folder)) is not None:
            return pipeline
    return find_pipeline(ref.name)


def _read(name: str, folder: Path) -> Pipeline | None:
    """The pipeline in a folder; None if the files of a part are missing."""
    if not (folder / INDEX).is_file():
        return None
    index = json.loads((folder / INDEX).read_text("utf-8"))
    named = {part: row for part, row in index.items() if isinstance(row, list) and row[0]}
    if any(not (folder / part).is_dir() for part in named):
        return None
    configs = {part: _config_in(folder / part) for part in named}
    # Files of diffusers do not say the type of the weights, which are mostly stored in one.
    types = [config.get("dtype") or config.get("torch_dtype") for config in configs.values()]
    dtype = next((kind for kind in types if isinstance(kind, str)), "float32")
    parts = {part: Part(row[0], row[1], configs[part], dtype) for part, row in named.items()}
    return Pipeline(name, str(index["_class_name"]), parts, path=folder)


def _config_in(folder: Path) -> dict[str, Any]:
    paths = (folder / name for name in _CONFIGS if (folder / name).is_file())
    config: dict[str, Any] = next((json.loads(path.read_text("utf-8")) for path in paths), {})
    return config


@cache
def pipelines() -> tuple[Pipeline, ...]:
    """All built-in pipelines, in the order of the data file."""
    data = data_of("pipelines.toml")
    return tuple(_pipeline(row, data["parts"]) for row in data["pipelines"])


def find_pipeline(name: str) -> Pipeline | None:
    """The pipeline with that id or alias, ignoring case; None if it is not built in."""
    wanted = name.strip().lower()
    for pipeline in pipelines():
        if wanted in (each.lower() for each in (pipeline.id, *pipeline.aliases)):
            return pipeline
    return None


def _pipeline(row: Mapping[str, Any], shared: Mapping[str, Any]) -> Pipeline:
    rows = {name: shared[part] for name, part in row.get("parts", {}).items()} | row["own"]
    parts = {name: _part(part, row["dtype"]) for name, part in rows.items()}
    for name, tokenizer in row.get("tokenizers", {}).items():
        parts[name] = Part("transformers", tokenizer)
    return Pipeline(row["id"], row.get("class"), parts, tuple(row.get("aliases", ())))


def _part(row: Mapping[str, Any], dtype: str) -> Part:
    library, _, name = row["class"].rpartition(".")
    config = row.get("config", {})
    if like := row.get("like"):
        model = find_model(like)
        config = {} if model is None else dict(model.config) | {"architectures": [name]}
    return Part(library, name, config, row.get("dtype", dtype), row.get("parameters"))
