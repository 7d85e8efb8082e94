"""The files in `oomdoctor/data`: facts, pages and texts that come with the package."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any


def data_text(name: str) -> str:
    """The text of a file by its path in the folder, such as `report/page.css`."""
    return resources.files("oomdoctor").joinpath("data", *name.split("/")).read_text("utf-8")


def data_of(name: str) -> Any:
    """The content of a JSON or TOML file."""
    text = data_text(name)
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


def page_parts(page: str, names: Iterable[str]) -> dict[str, str]:
    """The texts of these files of a page (`timeline`, `report`) by name."""
    return {name: data_text(f"{page}/{name}") for name in names}
