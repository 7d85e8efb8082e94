"""The files that a page is made of, from the data of the package."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources


def page_parts(page: str, names: Iterable[str]) -> dict[str, str]:
    """The texts of these files of a page (`timeline`, `report`) by name."""
    folder = resources.files("oomdoctor").joinpath("data", page)
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in names}
