"""Which options exclude or need each other is one table, and each row of it is refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

from oomdoctor.cli.main import app
from oomdoctor.cli.options.exclusions import (
    Exclusion,
    broken_rules,
    exclusions,
    given_options,
    option_names,
)
from oomdoctor.cli.options.flatten import declared_types, leaves

PACKAGE = Path(__file__).parents[2] / "oomdoctor"
VERBS: dict[str, Any] = {
    str(command.callback.__name__): kind
    for command in app.registered_commands
    if command.callback is not None
    for kind in get_type_hints(getattr(command.callback, "__wrapped__", None) or str).values()
    if is_dataclass(kind)
}
"""The class of options of each verb that has one."""
# What each has to have so that the options are read at all.
NEEDED = {"plan": ("m", "--gpu", "T4"), "probe": ("m",)}


def _tables(kind: Any) -> Iterator[str]:
    yield kind.__name__.removesuffix("Options").lower()
    for hint in get_type_hints(kind).values():
        if is_dataclass(hint):
            yield from _tables(hint)


ROWS = [
    (verb, rule, term)
    for verb, kind in VERBS.items()
    for table in _tables(kind)
    for rule in exclusions().get(table, ())
    for term in rule.about(given_options(kind()))
]


def _names(rule: Exclusion) -> set[str]:
    terms = chain(rule.options, rule.excludes, rule.needs, rule.unless, rule.but)
    return {term.partition(" ")[0] for term in terms} - {"*"}


def _words(verb: str, term: str) -> list[str]:
    """The term as it is typed, with some value where the rule names none."""
    name, _, value = term.partition(" ")
    kind = VERBS[verb]
    (field,) = (field for field, known in option_names(kind).items() if known == name)
    usual = dict(leaves(kind()))[field]
    text = {"A..B": "1..4", "several": "4", "": "4"}.get(value, value)
    text += "=1..2" if name == "--sweep" and value else ""
    if not name.startswith("--"):
        return [text, "5"] if value else [text]
    if isinstance(usual, bool):
        return [name if usual is False else f"--no-{name[2:]}"]
    return [name, text] * (2 if value == "several" and name == "--gpu" else 1)


@pytest.mark.parametrize(("verb", "rule", "term"), ROWS, ids=lambda value: str(value)[:60])
def test_each_row_is_refused_by_each_verb(
    cli: Callable[..., Any],
    survey: Any,
    planned: Any,
    verb: str,
    rule: Exclusion,
    term: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = () if term == "MODEL" else NEEDED.get(verb, ())
    if "--resume" in rule.excludes:
        assert cli("probe", "m", "--quiet").code == 0
        survey.request = None
    if verb == "plan" and "--gpu several" in (*rule.excludes, *rule.needs):
        needed = ("m",)
    for other in rule.excludes or ("",):
        typed = [*_words(verb, term), *(_words(verb, other) if other else ())]
        typed = ["latest" if word == "4" and other == "--resume" else word for word in typed]
        ended = cli(verb, *needed, *typed)
        assert ended.code == 2, ended.err
        assert survey.request is None and planned.request is None
        name = term.partition(" ")[0]
        said = (rule.says or "combined with" if other else rule.says or "needs").split("{")[0]
        assert re.search(rf"^(error:)? *{re.escape(name)}: .*{re.escape(said)}", ended.err, re.M)


@pytest.mark.parametrize(("verb", "rule", "term"), [row for row in ROWS if row[1].needs])
def test_what_is_needed_is_enough(verb: str, rule: Exclusion, term: str) -> None:
    kind = VERBS[verb]
    fields = {name: field for field, name in option_names(kind).items()}
    for other in rule.needs:
        if other not in fields and other.partition(" ")[0] not in fields:
            continue  # an option of another verb with the same rule, or a variable
        words = [_words(verb, one) for one in (term, other)]
        options = _parsed(verb, [*words[0], *words[1]])
        assert rule.says not in [broken.message for broken in broken_rules(options)]


def _parsed(verb: str, words: list[str]) -> Any:
    """The options of a command line as the verb gets them."""

    def build(kind: Any, given: dict[str, Any]) -> Any:
        hints = declared_types(kind)
        return kind(
            **{
                field: build(hint, given) if is_dataclass(hint) else given[field]
                for field, hint in hints.items()
            }
        )

    command: Any = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    context = command.make_context(verb, list(words), resilient_parsing=False)
    return build(VERBS[verb], context.params)


def test_each_rule_names_options_of_its_verbs() -> None:
    known = {table for kind in VERBS.values() for table in _tables(kind)}
    assert set(exclusions()) <= known
    for table, rules in exclusions().items():
        verbs_of = [verb for verb, kind in VERBS.items() if table in _tables(kind)]
        names = {name for verb in verbs_of for name in option_names(VERBS[verb]).values()}
        for rule in rules:
            assert bool(rule.excludes) != bool(rule.needs)
            assert {name for name in _names(rule) if not name.startswith("OOMDOCTOR_")} <= names


# About numbers that do not agree, a file that two options name, a stored run, or another command.
_NO_RULES = {
    "has ? GPUs, but --gpus says ?",
    "? nodes need a multiple of ? as --gpus",
    "this run knows no rows of your data; add --rows N",
    "is one number for probe; `oomdoctor plan` takes a range with --min",
    "--output: ? is a file of --from, which would be lost",
    "two --rung options differ only in their micro-batch size (?)",
    "? on several GPUs, and --gpus is missing",
    "say what to write (--to)",
}


def test_no_verb_has_a_rule_of_its_own() -> None:
    """An error that names another option is a rule, and belongs to the table."""
    found = set()
    for file in (PACKAGE / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and _called(node) in ("fault", "usage_error"):
                text = _text(node.args[1]) if len(node.args) > 1 else ""
                own = {_text(node.args[0]), text.partition(":")[0]}
                others = set(re.findall(r"--[a-z][a-z-]+", text)) - own
                found |= (
                    {text} if others or re.search("contradict|combined|leave out", text) else set()
                )
    assert found - _NO_RULES == set()


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _text(node: ast.expr) -> str:
    """The text of a literal, with `?` for what is filled in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in parts)
