"""Reads a training configuration file: JSON, YAML or TOML into plain values.

Only data is read: YAML with its safe loader, and nothing that a file names is imported or run.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, usage_error

_LIMIT = 8 * 1024**2  # bytes; far above any configuration
# By option, what to do about a file that cannot be used.
_WITHOUT = {
    "--config": "fix the file, or drop --config and pass --model, --seq-len and --micro-batch",
    "--apply": "fix the file, or drop --apply and pass it as --config",
    "--from": "fix the file, or drop --from",
}


def read_train_config(path: Path, option: str = "--config") -> Mapping[str, Any]:
    """The content of a configuration file, which `option` names, as a mapping.

    Raises:
        OomDoctorError: exit 2; codes config_missing, bad_config, no_yaml.
    """
    return read_with_text(path, option)[0]


def read_with_text(path: Path, option: str) -> tuple[Mapping[str, Any], str]:
    """The content of a configuration file, and its text.

    Raises:
        OomDoctorError: exit 2; codes config_missing, bad_config, no_yaml.
    """
    text = read_text(path, option)
    value = _parse(path, option, text)
    if not isinstance(value, Mapping):
        raise _bad(path, option, "has no settings (key: value)")
    return {str(key): item for key, item in value.items()}, text


def read_text(path: Path, option: str) -> str:
    """The text of a file that `option` names.

    Raises:
        OomDoctorError: exit 2; codes config_missing, bad_config.
    """
    try:
        if path.stat().st_size > _LIMIT:
            raise _bad(path, option, "is larger than 8 MiB, so it is not a configuration")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "check the path" if path.is_absolute() else f"check the path, from {Path.cwd()}"
        raise usage_error("config_missing", f"{option}: {path}: No such file", hint) from None
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise usage_error(
            "config_missing", f"{option}: {path}: {reason}", _WITHOUT[option]
        ) from None
    except UnicodeDecodeError:
        raise _bad(path, option, "is not UTF-8 text") from None


def _parse(path: Path, option: str, text: str) -> Any:
    suffix = path.suffix.lower()
    try:
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix == ".json" or text.lstrip().startswith("{"):
            return json.loads(text)
    except json.JSONDecodeError as error:
        raise _bad(path, option, f"line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise _bad(path, option, str(error)) from None
    return _yaml(path, option, text)


def _yaml(path: Path, option: str, text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise usage_error(
            "no_yaml",
            f"{option}: {path} is YAML, but PyYAML is not installed",
            "run `pip install pyyaml`, or pass the settings as JSON",
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        line = f"line {place.line + 1}: " if place is not None else ""
        raise _bad(path, option, f"{line}{getattr(error, 'problem', None) or error}") from None


def _bad(path: Path, option: str, reason: str) -> OomDoctorError:
    return usage_error("bad_config", f"{option}: {path}: {reason}", _WITHOUT[option])
