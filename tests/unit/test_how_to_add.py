"""The diffs in CONTRIBUTING.md are real: their context is in the files that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _hunks() -> list[tuple[str, list[str]]]:
    """(file, lines) of each part of a diff block."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("--- a/"):
                found.append((line.removeprefix("--- a/"), []))
            elif not line.startswith("+++ "):
                found[-1][1].append(line)
    return found


@pytest.mark.parametrize(("file", "lines"), _hunks(), ids=lambda value: str(value)[:50])
def test_the_context_is_in_the_file(file: str, lines: list[str]) -> None:
    before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    assert before in (ROOT / file).read_text(encoding="utf-8")
    assert any(line.startswith("+") for line in lines)


def test_each_table_has_a_diff() -> None:
    files = {file for file, _ in _hunks()}
    tables = {"optimizers", "dtypes", "attention", "architectures", "unsupported"}
    assert {f"oomdoctor/records/facts/{name}.py" for name in tables} <= files
