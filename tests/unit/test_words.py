"""No text that a person reads has a turn that nobody says.

`BANNED` is a list of patterns. They are looked for in help, docs, recipes, example pages, and in
every string and docstring of the package. A text that quotes a log or a library is not ours: it is
named in `QUOTED`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = {
    # inverted or archaic turns
    r"by a hair": "borderline",
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
    # American spelling
    r"[Qq]uanti[s]ation|[Qq]uanti[s]ed?\b|[Dd]equanti[s]": "quantization",
    r"\b[Uu]tilisation|[Ii]nitialis|[Ss]ummaris(e|ed|ing)\b(?!\()": "-iz-",
    r"\bcolour|\bbehaviour|\bfavour|\bmodelled|\bmodelling\b|\blabelled|\bcancelled": "-or-, -l-",
    r"\bcentre\b|\bgrey\b|\bjudgement\b": "center, gray, judgment",
}
PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in BANNED))
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


def strings(module: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module that has a space in it, with its line."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


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


@pytest.mark.parametrize("verb", ["", "probe", "plan", "explain", "show", "recipes", "env", "gpus"])
def test_help_is_plain_english(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from oomdoctor.cli.main import run

    assert run([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text and not found(text, ROOT / "README.md")


def test_the_list_finds_what_it_is_for() -> None:
    said = "A row that is short by a hair is told; the hopeless are quantised afresh."
    assert len(found(said, ROOT / "README.md")) == 5
