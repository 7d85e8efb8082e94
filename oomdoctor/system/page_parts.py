"""The files that the page of a timeline is made of, from the package's data."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources


def page_parts(names: Iterable[str]) -> dict[str, str]:
    """The texts of these files by name."""
    folder = resources.files("oomdoctor").joinpath("data", "timeline")
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in names}
