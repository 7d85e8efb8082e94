"""Reads the config.json of a folder, or says what the folder is instead of a model."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, model_error
from oomdoctor.records.facts.architectures import SIZE_NAMES
from oomdoctor.records.job.model import config_of_json
from oomdoctor.system.regular_files import text_of

MODULES = "modules.json"  # what a model of sentence-transformers is made of
_POOLINGS = (
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ("pooling_mode_lasttoken", "lasttoken"),
)
_MOST_LAYERS = 10_000
_LARGEST = 16 << 20  # bytes; thousands of labels have 2 MB


def config_beside(path: Path) -> Path:
    """The config.json of a folder; `path` may also be the file itself.

    Raises:
        OomDoctorError: not_a_folder, no_config or peft_adapter.
    """
    if path.name == "config.json" and path.is_file():
        return path
    if not path.is_dir():
        raise model_error(
            "not_a_folder",
            f"{path} is a file, not a folder with config.json",
            f"pass the folder: {path.parent}",
        )
    if (path / "config.json").is_file():
        return path / "config.json"
    adapter = path / "adapter_config.json"
    # Sorted by length first, so that checkpoint-1000 comes after checkpoint-500.
    names = (file.parent.name for file in path.glob("*/config.json"))
    inside = sorted(names, key=lambda name: (len(name), name))
    raise missing_config(str(path), adapter if adapter.is_file() else None, tuple(inside))


def missing_config(name: str, adapter: Path | None, inside: tuple[str, ...] = ()) -> OomDoctorError:
    """The error for a folder or repository `name` without config.json.

    `adapter` is its adapter_config.json, `inside` its subfolders with a config.json.
    """
    if adapter is not None:
        base = _base_model(adapter)
        return model_error(
            "peft_adapter",
            f"{name} is a PEFT adapter without its base model",
            f"probe the base model: oomdoctor probe {shlex.quote(base)} --recipe lora"
            if base
            else "name the base model instead, with --recipe lora",
        )
    if inside:
        hint = f"try the checkpoint inside: {name.rstrip('/')}/{inside[-1]}"
    else:
        hint = "pass a checkpoint in transformers format; GGUF files cannot be trained"
    return model_error("no_config", f"{name} has no config.json", hint)


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config.json in transformers format.

    Raises:
        OomDoctorError: broken_config (unreadable, not a JSON object, no model_type) or
            unsupported_architecture (a file of another library).
    """
    try:
        config = config_of_json(text_of(path, _LARGEST))
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _broken(path, "is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise _broken(path, f"is not valid JSON: {error.msg} in line {error.lineno}") from None
    except ValueError:
        raise _broken(path, "has a number of thousands of digits") from None
    except RecursionError:
        raise _broken(path, "is nested too deeply for a model's configuration") from None
    if not isinstance(config, dict):
        raise _broken(path, "is not a JSON object")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for name in SIZE_NAMES["layers"]:
            layers = part.get(name)
            if isinstance(layers, int) and layers > _MOST_LAYERS:
                raise _broken(path, f"says {name}: {layers:,}, and no model has as many layers")
    if isinstance(config.get("model_type"), str) and config["model_type"]:
        return config
    if library := _other_library(config):
        raise model_error(
            "unsupported_architecture",
            f"{path} describes a {library} model, not a transformers model",
            "pass a model that transformers can load",
        )
    raise _broken(path, "has no model_type")


def pooling_of(modules: Path) -> str | None:
    """How sentence-transformers pools the embeddings of tokens, by its modules.json.

    None if the file is missing, cannot be read, or has no such module.
    """
    with suppress(OSError, ValueError, TypeError, AttributeError):
        file = pooling_file(modules)
        settings = {} if file is None else json.loads(text_of(modules.parent / file, _LARGEST))
        named = settings.get("pooling_mode") or [m for key, m in _POOLINGS if settings.get(key)]
        return named if isinstance(named, str) else "+".join(named) or None
    return None


def pooling_file(modules: Path) -> str | None:
    """The file about pooling that a modules.json names; None if it names none.

    Raises:
        OSError, ValueError, TypeError, AttributeError: the file is missing or another one.
    """
    parts = json.loads(text_of(modules, _LARGEST))
    folders = [part.get("path") for part in parts if part.get("type", "").endswith("Pooling")]
    return f"{folders[0]}/config.json" if folders and folders[0] else None


def _broken(path: Path, what: str) -> OomDoctorError:
    hint = 'download it again; it needs at least "model_type" and "architectures"'
    return model_error("broken_config", f"{path} {what}", hint)


def _other_library(config: dict[str, Any]) -> str | None:
    if "_class_name" in config or "_diffusers_version" in config:
        return "diffusers"
    if "architecture" in config and "architectures" not in config:
        return "timm"
    if "dim" in config and "n_layers" in config:
        return "consolidated-checkpoint (original format)"
    return None


def _base_model(adapter: Path) -> str | None:
    try:
        config = json.loads(text_of(adapter, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return base if isinstance(base, str) and base else None
