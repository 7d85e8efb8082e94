"""No text that a person reads has a turn that nobody says.

`BANNED` is a list of patterns. They are looked for in help, docs, recipes, example pages, and in
every string and docstring of the package. A text that quotes a log or a library is not ours: it is
named in `QUOTED`.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = {
    # inverted or archaic turns
    r"by a hair": "borderline",
    r"\blets? (a|the) request pass\b|\bgot past the request\b": "avoid the error; succeed",
    r"\bis told\b|\bare told\b|\btold apart\b": "the report says; distinguished",
    r"\blacks?\b(?! of)": "short by; has no",
    r"\bwears?\b": "produces",
    r"\bhad of\b": "",
    r"\bby code of its own\b|\bcode of its own\b": "custom code",
    r"\bof its own\b|\bof their own\b": "its own; a separate",
    r"\bmend(s|ed)?\b": "fix",
    r"\bhopeless\b": "rungs far above the budget",
    r"\bsweeps nothing\b": "cannot sweep",
    r"\bafresh\b|\banew\b": "again",
    r"\bat hand\b": "available",
    r"which there is nothing": "",
    r"\bthere is nothing to go on with\b": "cannot be resumed",
    r"\bgo(es)? on with\b|\bgone on with\b": "continue; resume",
    r"\bwhoever\b|\bwhatever it (was|is)\b": "",
    r"\bnot the same training\b": "Best of each method",
    r"\bno card\b": "not a card",
    r"\bmay be used\b": "usable",
    r"\bsuch as stand\b|\bas it stands\b": "",
    r"\blearnt\b": "learned",
    r"\bis to be had\b|\bto be had\b|\bcannot be had\b": "available",
    r"\bbroken[- ]off\b": "interrupted",
    r"\bcomes? along\b": "built in",
    r"\bleanest\b|\bthrift(y|iest)?\b": "with the least memory",
    r"\bbytes a parameter\b|\bbyte a parameter\b": "bytes per parameter",
    r"\btokens an optimizer step\b": "tokens per optimizer step",
    r"\bin one go\b": "at once",
    r"\bfor want of\b|\bno doubt\b|\bthereof\b|\bwherein\b|\bhereby\b|\bwhereby\b": "",
    r"\bknows? of (?!CUDA)": "knows",
    r"\bforesee|\bforesight|\bforecast": "predict",
    r"\bbut for\b": "except for",
    r"\b(?:is|are) not said\b": "does not say",
    r"\blikewise\b": "in the same way",
    r"\bin spite of\b": "anyway",
    r"\b(?:comes?|came) of\b": "the result of",
    r"\b(?:cards?|GPUs?) that (?:is|are) not here\b|\bneed not be (?:here|in)\b": "you don't have",
    r"\bsome (?:micro|milli)?(?:seconds|minutes)\b": "a few",
    # American spelling
    r"[Qq]uanti[s]ation|[Qq]uanti[s]ed?\b|[Dd]equanti[s]": "quantization",
    r"\b[Uu]tilisation|[Ii]nitialis|[Ss]ummaris(e|ed|ing)\b(?!\()": "-iz-",
    r"\bcolour|\bbehaviour|\bfavour|\bmodelled|\bmodelling\b|\blabelled|\bcancelled": "-or-, -l-",
    r"\bcentre\b|\bgrey\b|\bjudgement\b": "center, gray, judgment",
}
PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in BANNED))
# Code calls a configuration a rung, and so do `--rung` and JSON keys; a text for people does not.
NAMES = re.compile(
    r"`[^`]*`|<!--.*?-->|\(images/\S*\)|(?:\\?-){2}rung[\w-]*|\[\[rung\]\]|^rung: must be"
    r"|\[Rung\]\(#rung\)|^### Rung$|\*rung\*|\{rungs\b",
    re.MULTILINE,
)
WORKING_NAME = re.compile(
    r"\b[Rr]ungs?\b|\b[Tt]rainings\b"
    r"|\b[Bb]eside\b|\bthat (?:is|are) not there\b|\bneed not be here\b"
    r"|\b[Aa] training\b(?! (?:run|step|configuration|script|job|file|set|setting|program)\b)"
)
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
# By file: words that are not ours, because a log, a library or a name has them.
QUOTED = {
    "oomdoctor/records/job/costs.py": '"quantised"',
    "oomdoctor/data/look_alikes.toml": 'name = "cancelled"',
    "oomdoctor/data/rung_keys.toml": '"quantisation"',
}


def found(text: str, file: Path) -> list[str]:
    """The banned turns in a text, each with some words around it."""
    quoted = QUOTED.get(str(file.relative_to(ROOT)))
    text = " ".join((re.sub(quoted, "", text) if quoted else text).split())
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in PATTERN.finditer(text)]


def working_names(text: str) -> list[str]:
    """Our own names of things in a text for a person, each with some words around it."""
    text = " ".join(NAMES.sub("", text).split())
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in WORKING_NAME.finditer(text)]


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
