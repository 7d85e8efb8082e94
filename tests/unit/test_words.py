"""No text that a person reads has a turn that nobody says.

The patterns are in tests/examples/plain_words.py. They are looked for in help, docs, recipes,
example pages, and in every string and docstring of the package. tests/site looks for them in the
built site.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from plain_words import found, working_names

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "recipes").glob("*.toml")),
    *sorted((ROOT / "tests" / "data" / "golden").glob("*-pipe.txt")),
    ROOT / "oomdoctor" / "data" / "timeline" / "page.html",
    *sorted((ROOT / "oomdoctor" / "data" / "timeline").glob("[!u]*.js")),
    *sorted((ROOT / "oomdoctor" / "data").rglob("*.toml")),
]
READ = [
    *(page for page in PAGES if page.suffix in (".md", ".txt") or page.parent.name == "recipes"),
    *sorted((ROOT / "docs" / "man").iterdir()),
    *sorted((ROOT / "tests" / "data" / "golden").glob("*.md")),
]
DATA = [
    *sorted((ROOT / "oomdoctor" / "data").rglob("*.toml")),
    ROOT / "oomdoctor" / "data" / "report.schema.json",
]
WIDTH = 110
MODULES = sorted((ROOT / "oomdoctor").rglob("*.py"))


def values(table: Mapping[str, object] | list[object]) -> Iterator[str]:
    """The texts of a TOML or JSON document, and the keys that are sentences."""
    if isinstance(table, Mapping):
        yield from (key for key in table if " " in key)
    for value in table.values() if isinstance(table, Mapping) else table:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (Mapping, list)):
            yield from values(value)


def strings(module: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module that has a space in it, with its line."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def messages(module: Path) -> Iterator[ast.Constant]:
    """The strings of a module that have a space in them and are no docstrings."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in said and " " in str(node.value):
            yield node


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain_english(page: Path) -> None:
    assert not found(page.read_text(encoding="utf-8"), page)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.suffix == ".md"], ids=lambda p: p.name
)
def test_a_line_of_a_page_is_not_too_long(page: Path) -> None:
    long = {number: line for number, line in prose(page) if len(line) > WIDTH}
    # A link cannot be broken, and an item of the table of contents is one line.
    assert not {n: line for n, line in long.items() if not re.match(r"- \[.*\]\(\S+\)", line)}


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines that somebody wrote and wrapped, with their numbers: no output, table or image."""
    block = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith(("```", "<!-- generated", "<!-- end")):
            block = "" if block else line
        elif not block and not line.startswith(("|", "![")):
            yield number, line


def test_the_package_is_plain_english() -> None:
    turns = [
        f"{module.relative_to(ROOT)}:{line}: ...{turn}..."
        for module in MODULES
        for line, text in strings(module)
        for turn in found(text, module)
    ]
    assert not turns, "\n" + "\n".join(turns)


@pytest.mark.parametrize("page", READ, ids=lambda page: page.name)
def test_a_text_says_configuration(page: Path) -> None:
    assert not working_names(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", DATA, ids=lambda file: file.name)
def test_the_texts_in_data_say_configuration(file: Path) -> None:
    load = json.loads if file.suffix == ".json" else tomllib.loads
    texts = [
        text
        for text in values(load(file.read_text(encoding="utf-8")))
        if " " in text and "\\b" not in text
    ]
    assert not [turn for text in texts for turn in working_names(text)]


def test_the_messages_of_the_package_say_configuration() -> None:
    turns = [
        f"{module.relative_to(ROOT)}:{node.lineno}: ...{turn}..."
        for module in MODULES
        for node in messages(module)
        for turn in working_names(str(node.value))
    ]
    assert not turns, "\n" + "\n".join(turns)


@pytest.mark.parametrize("verb", ["", "probe", "plan", "explain", "show", "recipes", "env", "gpus"])
def test_help_is_plain_english(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from oomdoctor.cli.main import run

    assert run([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text and not found(text, ROOT / "README.md")
    assert not working_names(text)


def test_the_list_finds_what_it_is_for() -> None:
    said = "A row that is short by a hair is told; the hopeless are quantised afresh."
    assert len(found(said, ROOT / "README.md")) == 5
    said = "Add a rung with `--rung` or --rung; two trainings, or a training that ends, need rungs."
    assert len(working_names(said)) == 4
    said = "The peak is that of the plan. A row is taken to be full; this is no setting."
    assert len(working_names(said)) == 3
