"""Reads a training configuration file: JSON, YAML or TOML into plain values.

Only data is read: YAML with its safe loader, and nothing that a file names is imported or run.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.system.regular_files import bytes_of, plain_text
from oomdoctor.system.toml_text import toml_of

_LIMIT = 8 * 1024**2  # bytes; far above any configuration
_MOST_VALUES = 200_000  # written out: an alias counts as what it stands for
_DEEPEST = 100  # levels
TOO_DEEP = "is nested too deeply for a configuration"
# By option, what to do about a file that cannot be used.
_WITHOUT = {
    "--config": "fix the file, or drop --config and pass --model, --seq-len and --micro-batch",
    "--apply": "fix the file, or drop --apply and pass it as --config",
    "--from": "fix the file, or drop --from",
}


def read_with_text(path: Path, option: str) -> tuple[Mapping[str, Any], str]:
    """The content of a configuration file, which `option` names, and its text.

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
        return plain_text(bytes_of(path, _LIMIT))
    except FileNotFoundError:
        hint = "check the path" if path.is_absolute() else f"check the path, from {Path.cwd()}"
        raise usage_error("config_missing", f"{option}: {path}: No such file", hint) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _bad(path, option, f"is {error.strerror}, so it is not a configuration") from None
        what = f"{option}: {path}: {error.strerror or 'cannot be read'}"
        raise usage_error("config_missing", what, _WITHOUT[option]) from None
    except UnicodeDecodeError:
        raise _bad(path, option, "is not UTF-8 text") from None


def _parse(path: Path, option: str, text: str) -> Any:
    suffix = path.suffix.lower()
    try:
        if suffix == ".toml":
            return bounded(toml_of(text))
        is_json = suffix == ".json" or text.lstrip().startswith("{")
        return bounded(json.loads(text) if is_json else _yaml(path, option, text))
    except json.JSONDecodeError as error:
        raise _bad(path, option, f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise _bad(path, option, TOO_DEEP) from None
    except ValueError as error:
        raise _bad(path, option, str(error)) from None


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
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f"line {place.line + 1}: " if place is not None else ""
        raise ValueError(f"{line}{getattr(error, 'problem', None) or error}") from None


def bounded(value: Any) -> Any:
    """The value, if it is small when each alias of YAML is written out.

    Raises:
        ValueError: it has an alias inside what it stands for, or is too large or too deep.
    """
    sizes: dict[int, int] = {}

    def size(part: Any, depth: int) -> int:
        if not isinstance(part, Mapping | list | tuple | set):
            return 1
        if depth > _DEEPEST:
            raise ValueError(TOO_DEEP)
        counted = sizes.setdefault(id(part), 0)
        if counted:
            return counted
        if id(part) in inside:
            raise ValueError("an alias is inside the value that it refers to")
        inside.add(id(part))
        parts = part.values() if isinstance(part, Mapping) else part
        sizes[id(part)] = total = 1 + sum(size(child, depth + 1) for child in parts)
        inside.remove(id(part))
        if total > _MOST_VALUES:
            raise ValueError("its aliases stand for more values than a configuration has")
        return total

    inside: set[int] = set()
    size(value, 0)
    return value


def _bad(path: Path, option: str, reason: str) -> OomDoctorError:
    return usage_error("bad_config", f"{option}: {path}: {reason}", _WITHOUT[option])
