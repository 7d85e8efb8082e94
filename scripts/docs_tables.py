"""Markdown of the documentation's tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def folded(summary: str, text: str) -> str:
    """A part of a page that opens with a click."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"
