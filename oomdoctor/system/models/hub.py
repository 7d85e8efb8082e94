"""Finds a model: local folder, Hugging Face cache, hub (config.json only), built-in catalogue.

Never loads weights or imports torch, and imports huggingface_hub only for a name that is not a
local folder. Fallbacks are returned as notes for the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, model_error
from oomdoctor.records.facts.checkpoints import checkpoint_of
from oomdoctor.records.job.model import AUTO_CLASSES, ModelRef, ModelSource, ModelSpec
from oomdoctor.system.catalogue import CatalogueModel, find_model, model_types
from oomdoctor.system.models import fetch
from oomdoctor.system.models.checkpoint import MODULES, config_beside, pooling_of, read_config
from oomdoctor.system.models.tasks import (
    architecture_of,
    is_causal,
    is_without_head,
    other_input,
    task_of,
    text_part,
)

ELSEWHERE = frozenset(
    {"gated", "bad_token", "model_not_found", "not_cached", "offline", "hub_unreachable",
     "cache_unwritable", "no_huggingface_hub"}
)  # fmt: skip
"""Errors of a model that is not on this machine."""
# Hub failures after which built-in facts may be used instead.
_STAND_IN = ELSEWHERE | {"bad_model_name"}


@dataclass(frozen=True, slots=True)
class Located:
    """The config of a model and its source, for any task."""

    id: str
    source: ModelSource
    config: Mapping[str, Any]
    path: str | None = None
    revision: str | None = None
    catalogued: CatalogueModel | None = None
    notes: tuple[str, ...] = ()

    def pooling(self) -> str | None:
        """How the model's own files say that it makes embeddings."""
        return None if self.path is None else pooling_of(Path(self.path) / MODULES)


def resolve(ref: ModelRef) -> ModelSpec:
    """The model that `ref` names; see `resolve_with_notes`."""
    return resolve_with_notes(ref)[0]


def resolve_with_notes(ref: ModelRef) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model that `ref` names, and notes for the report about anything that differs from it.

    `ref.source` selects one place. "auto" takes the first that has the model: local folder, cache,
    hub, built-in catalogue. The catalogue is also used if the hub cannot be reached or refuses.

    Raises:
        OomDoctorError: exit 4. Codes: model_path_missing, not_a_folder, no_config, peft_adapter,
            broken_config, unsupported_architecture, unsupported_task, gated, bad_token,
            model_not_found, revision_not_found, bad_model_name, not_cached, not_in_catalogue,
            offline, hub_unreachable, cache_unwritable, no_huggingface_hub.
    """
    source = locate(ref)
    notes = list(source.notes)
    config: dict[str, Any] = dict(source.config)
    if ref.task in ("causal-lm", "embedding") and (foreign := other_input(config)):
        part = text_part(config)
        if part is not None:
            notes.append(f"only the language model is used; the parts for {foreign} are left out")
            named = architecture_of(config)
            own = {"architectures": [named]} if named.endswith("TextModel") else {}
            config = {**part, **own}
    pooling = source.pooling()
    embeds = pooling is not None and ref.task == "auto"
    task = task_of(config, "embedding" if embeds else ref.task)
    if task == "embedding" and pooling is None and is_causal(config):
        pooling = "lasttoken"  # as sentence-transformers takes it to be
    if ref.task == "auto" and not embeds and is_without_head(config):
        notes.append(
            f"{architecture_of(config)} has no head, so it is trained for {task}; "
            "--task names another one"
        )
    quantized = config.pop("quantization_config", None)
    quantized = quantized if isinstance(quantized, dict) else None
    if quantized is not None:
        notes.append(_note_on_quantized(quantized))
    model_type = str(config["model_type"])
    if config.get("auto_map") and model_type not in model_types() and not ref.trust_remote_code:
        notes.append(
            "config.json refers to custom code (auto_map), which does not run without "
            f"--trust-remote-code; without it, transformers must support {model_type}"
        )
    catalogued = source.catalogued
    counted = catalogued is not None and catalogued.auto_class == AUTO_CLASSES[task]
    spec = ModelSpec(
        id=source.id,
        source=source.source,
        architecture=architecture_of(config),
        model_type=model_type,
        task=task,
        config=config,
        parameters=catalogued.parameters if catalogued is not None and counted else None,
        revision=source.revision,
        path=source.path,
        trust_remote_code=ref.trust_remote_code,
        pooling=pooling if task == "embedding" else None,
        quantized=quantized,
    )
    return spec, tuple(notes)


def _note_on_quantized(settings: Mapping[str, Any]) -> str:
    """What a quantized checkpoint is trained as."""
    row = checkpoint_of(settings)
    if row is None:
        method = settings.get("quant_method") or "unknown method"
        return f"the checkpoint is quantized ({method}); the unquantized model is planned instead"
    if not row.stored:
        return f"the checkpoint is quantized ({row.name}): {row.instead}"
    return (
        f"the checkpoint is quantized ({row.name}): quantization=checkpoint trains LoRA on it as "
        "stored; the other configurations need the unquantized model"
    )


def locate(ref: ModelRef) -> Located:
    """Where the model that `ref` names is, and its config; see `resolve_with_notes`."""
    if not ref.name.strip():
        raise fetch.bad_name(ref)
    if ref.source == "catalogue":
        return _from_catalogue(ref)
    if ref.source == "local" or (ref.source == "auto" and _is_path(ref.name)):
        return _from_folder(ref)
    if ref.source == "hub":
        return _snapshot(ref, "hub", fetch.hub_config(ref))
    try:
        return _snapshot(ref, "cache", fetch.cached_config(ref))
    except OomDoctorError as error:
        if ref.source == "cache" or error.code not in _STAND_IN:
            raise
    try:
        return _snapshot(ref, "hub", fetch.hub_config(ref))
    except OomDoctorError as error:
        if error.code not in _STAND_IN or find_model(ref.name) is None:
            raise
        return _from_catalogue(ref, f"{error.message}; using built-in facts")


def _is_path(name: str) -> bool:
    """Whether a name means a folder: by its spelling, or because the folder exists."""
    return name.startswith((".", "/", "~")) or name.endswith("/") or _exists(Path(name))


def _from_folder(ref: ModelRef) -> Located:
    try:
        given = Path(ref.name).expanduser()
    except RuntimeError:  # ~name of an unknown user
        given = Path(ref.name)
    if not _exists(given):
        hint = fetch.suggest(given.name, "check the path, or pass a Hugging Face id (ORG/NAME)")
        raise model_error("model_path_missing", f"{ref.name} does not exist", hint)
    config = read_config(config_beside(given))
    folder = given if given.is_dir() else given.parent
    name = str(folder) if folder.name else folder.resolve().name
    notes = (f"--revision {ref.revision} is ignored for a local folder",) if ref.revision else ()
    return Located(name, "local", config, path=str(folder.resolve()), notes=notes)


def _from_catalogue(ref: ModelRef, reason: str | None = None) -> Located:
    catalogued = find_model(ref.name)
    if catalogued is None:
        raise model_error(
            "not_in_catalogue",
            f"{ref.name} is not in the built-in catalogue",
            fetch.suggest(ref.name, "run `oomdoctor models` for the list"),
        )
    notes = [reason] if reason else []
    wanted = ref.name.strip().lower()
    ids = (catalogued.id, *catalogued.aliases)
    name = next(i for i in ids if wanted in (i.lower(), i.lower().rpartition("/")[2]))
    if name != catalogued.id:
        notes.append(
            f"using the built-in facts of {catalogued.id}, which has the same parameter shapes; "
            "context length and RoPE may differ"
        )
    if ref.revision:
        notes.append(f"--revision {ref.revision} is ignored for built-in facts")
    return Located(name, "catalogue", catalogued.config, catalogued=catalogued, notes=tuple(notes))


def _snapshot(ref: ModelRef, source: ModelSource, path: Path) -> Located:
    """A config.json in the cache: snapshots/COMMIT/config.json."""
    folder = path.parent
    return Located(ref.name, source, read_config(path), path=str(folder), revision=folder.name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for a file name, or in an unreadable folder
        return False
