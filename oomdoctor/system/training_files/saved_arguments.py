"""`training_args.bin`, which the Trainer saves beside a checkpoint, as plain values.

It is a pickle inside a zip file. No class of it is imported and nothing of it is run: every class
becomes a stand-in that keeps only its state.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

from oomdoctor.errors import usage_error

_LIMIT = 1 << 20  # bytes of the pickle; real ones have some kilobytes


class _StandIn:
    """An object of any class: what it was made with, and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.arguments = getattr(self, "arguments", ())
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        del module, name
        return type("StandIn", (_StandIn,), {"__new__": lambda cls, *_: object.__new__(cls)})

    def persistent_load(self, pid: Any) -> None:
        del pid  # tensors are not read


def read_saved_arguments(path: Path) -> dict[str, Any]:
    """The arguments by name; what is neither text, a number nor a list of these is left out.

    Raises:
        OomDoctorError: this is not a file that the Trainer has saved (exit 2).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (entry,) = [one for one in archive.infolist() if one.filename.endswith("/data.pkl")]
            if entry.file_size > _LIMIT:
                raise ValueError("is too large")
            saved = _Reader(io.BytesIO(archive.read(entry))).load()
    except (
        OSError,
        zipfile.BadZipFile,
        ValueError,
        pickle.UnpicklingError,
        EOFError,
        IndexError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        raise usage_error(
            "bad_config",
            f"--from: {path}: not a training_args.bin of the Trainer ({error})",
            "pass the file with the arguments instead",
        ) from None  # fmt: skip
    state = getattr(saved, "state", None)
    if not isinstance(state, dict):
        raise usage_error(
            "bad_config",
            f"--from: {path}: holds no arguments",
            "pass the file with the arguments instead",
        )
    plain = {str(key): _plain(value) for key, value in state.items()}
    return {
        key: value for key, value in plain.items() if not key.startswith("_") and value is not None
    }


def _plain(value: Any) -> Any:
    if isinstance(value, _StandIn):  # an enum, which is made from its value
        return _plain(value.arguments[0]) if len(value.arguments) == 1 else None
    if isinstance(value, list | tuple | set):
        return [one for one in map(_plain, value) if one is not None]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()} or None
    return value if isinstance(value, str | int | float | bool) else None
