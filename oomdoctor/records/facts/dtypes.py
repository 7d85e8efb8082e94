"""The data types of `data/dtypes.toml`, with the names that torch, settings and people use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oomdoctor.package_data import rows_of
from oomdoctor.records.capability import MODERN, capability_numbers


@dataclass(frozen=True, slots=True)
class DataType:
    """One data type, under torch's name.

    `word` is the short name in labels; only types that a model can be trained in have one.
    `spellings` are other names in configuration files, logs and error messages.
    """

    name: str
    size_bytes: int
    word: str | None = None
    spellings: tuple[str, ...] = ()


_ROWS = rows_of(DataType, "dtypes.toml")
DTYPES = {row.name: row for row in _ROWS}
TRAINED = {row.name: row for row in _ROWS if row.word}
# Every name and spelling -> bytes of one entry.
SIZES = {word: row.size_bytes for row in _ROWS for word in (row.name, *row.spellings)}
# Every name and spelling of a type that a model can be trained in -> its name.
TRAINED_NAMES = {word: row.name for row in TRAINED.values() for word in (row.name, *row.spellings)}
FLOAT32_BYTES = DTYPES["float32"].size_bytes


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """The type of a checkpoint's weights, as its config.json or the part of the text names it.

    A config.json that names no type is of before 2022, and the weights are in float32.
    """
    nested = config.get("text_config")
    parts = (config, nested if isinstance(nested, Mapping) else {})
    named = (part.get(key) for part in parts for key in ("dtype", "torch_dtype"))
    return str(next(filter(None, named), "float32")).removeprefix("torch.")


def dtype_bytes(name: str) -> int:
    """Bytes of one entry of a type that a model can be trained in."""
    return TRAINED[name].size_bytes


def dtype_word(name: str) -> str:
    """`bf16` for `bfloat16`: a type that a model can be trained in, as labels write it."""
    return TRAINED[name].word or name


def has_bfloat16(capability: str | None) -> bool:
    """Whether a GPU of this compute capability computes in bfloat16; True if it is unknown.

    From 8.0 (Ampere) on. Older cards emulate it (CUDA C++ Programming Guide, "Arithmetic
    Instructions").
    """
    return capability is None or capability_numbers(capability) >= MODERN
