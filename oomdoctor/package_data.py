"""The files in `oomdoctor/data`: facts, pages and texts that come with the package."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any, TypeVar

T = TypeVar("T")


def data_text(name: str) -> str:
    """The text of a file by its path in the folder, such as `report/page.css`."""
    return resources.files("oomdoctor").joinpath("data", *name.split("/")).read_text("utf-8")


def data_of(name: str) -> Any:
    """The content of a JSON or TOML file."""
    text = data_text(name)
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


def in_tuples(value: Any) -> Any:
    """A value of such a file with tuples for its lists."""
    if isinstance(value, dict):
        return {key: in_tuples(item) for key, item in value.items()}
    return tuple(map(in_tuples, value)) if isinstance(value, list) else value


def rows_of(kind: type[T], name: str) -> tuple[T, ...]:
    """The `rows` of a file as records of this kind."""
    return tuple(kind(**row) for row in in_tuples(data_of(name)["rows"]))


def page_parts(page: str, names: Iterable[str]) -> dict[str, str]:
    """The texts of these files of a page (`timeline`, `report`) by name."""
    return {name: data_text(f"{page}/{name}") for name in names}
