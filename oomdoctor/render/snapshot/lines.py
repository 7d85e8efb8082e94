"""Lines of code and categories as the page of a snapshot shows them."""

from __future__ import annotations

from pathlib import PurePath

from oomdoctor.records.inside.run import Place
from oomdoctor.units import DASH


def line_of(where: Place | None) -> str:
    """The file without its folder, and the line."""
    if where is not None and where.module is not None:
        return where.module
    return DASH if where is None else f"{PurePath(where.file).name}:{where.line}"


def at_line(where: Place | None) -> str:
    """The line and its function, to follow a sentence."""
    if where is None:
        return ""
    return f", {where.module or f'{line_of(where)} in {where.function}'}"
