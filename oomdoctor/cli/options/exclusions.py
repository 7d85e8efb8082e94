"""Which options exclude or need each other: the rules of `data/exclusions.toml`, for all verbs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from oomdoctor.cli.options.flatten import declared_types, is_options, leaves
from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.system.environment import variable

_ALL = "*"
RANGE, SEVERAL = "A..B", "several"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A rule: what it is about, and what it excludes or needs; `exclusions.toml` describes it."""

    options: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    says: str | None = None
    hint: str | None = None

    def about(self, given: Mapping[str, Given]) -> tuple[str, ...]:
        """The options that it is about."""
        if self.options != (_ALL,):
            return self.options
        return tuple(name for name in given if name not in self.but)


@dataclass(frozen=True, slots=True)
class Given:
    """An option of a command line: its value, and whether it is another than without the option."""

    value: object
    given: bool


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a command line breaks: the option, why, and the line to type if it has one."""

    option: str
    message: str
    hint: str | None


@cache
def exclusions() -> dict[str, tuple[Exclusion, ...]]:
    """The rules, by class of options."""
    rows = in_tuples(data_of("exclusions.toml"))
    return {name: tuple(Exclusion(**row) for row in rules) for name, rules in rows.items()}


def table_of(kind: type) -> str:
    """The name of a class of options in the tables of `oomdoctor/data`."""
    return kind.__name__.removesuffix("Options").lower()


@cache
def option_names(kind: type) -> dict[str, str]:
    """The first name of each option of a class, by field; of an argument, its word in the help."""
    names: dict[str, str] = {}
    for field, hint in declared_types(kind).items():
        if is_options(hint):
            names |= option_names(hint)
            continue
        (info,) = hint.__metadata__  # typer takes the first name as if it were a default
        word = info.default if isinstance(info.default, str) else info.metavar
        names[field] = word.partition("/")[0]
    return names


def given_options(options: Any, typed: Collection[str] = ()) -> dict[str, Given]:
    """Every option of a command line by its name.

    `typed` has the fields that were typed, for those with the value that they have without.
    """
    kind: Any = type(options)
    names, usual = option_names(kind), dict(leaves(kind()))
    values = {field: _listed(value) for field, value in leaves(options)}
    return {
        names[field]: Given(value, field in typed or value not in ([], _listed(usual[field])))
        for field, value in values.items()
    }


def _listed(value: Any) -> Any:
    """Several values as a list; releases of click differ in it."""
    return list(value) if isinstance(value, tuple) else value


def broken_rules(
    options: object, filled: object = None, typed: Collection[str] = ()
) -> Iterator[Broken]:
    """The rules that a command line breaks.

    `filled` are the same options with what the user's files say; a rule is about what was typed.
    """
    own = given_options(options, typed)
    given = own if filled is None else given_options(filled, typed)
    for rule in _rules(options):
        if any(_is_given(term, given) for term in rule.unless):
            continue
        for term in rule.about(own):
            if _is_given(term, own):
                yield from _break(rule, term, own, given)


def _rules(options: object) -> Iterator[Exclusion]:
    """The rules of a class of options and of the classes inside it."""
    yield from exclusions().get(table_of(type(options)), ())
    for field in fields(options):  # type: ignore[arg-type]
        if is_dataclass(value := getattr(options, field.name)):
            yield from _rules(value)


def _break(
    rule: Exclusion, term: str, own: Mapping[str, Given], given: Mapping[str, Given]
) -> Iterator[Broken]:
    others = [_name(other) for other in rule.excludes if _is_given(other, given)]
    if rule.needs and not any(_is_given(other, given) for other in rule.needs):
        missing = [_name(other) for other in rule.needs]
        usual, others = f"needs {' or '.join(missing)}", missing
    elif others:
        usual = f"cannot be combined with {' and '.join(others)}"
    else:
        return
    name = _name(term)
    words = {
        "value": _text(own[name].value),
        "others": " and ".join(others),
        "values": " and ".join(_text(given[other].value) for other in others if other in given),
    }
    hint = None if rule.hint is None else rule.hint.format(**words)
    yield Broken(name, (rule.says or usual).format(**words), hint)


def _is_given(term: str, given: Mapping[str, Given]) -> bool:
    """Whether a command line has an option, or an option with a value, as a rule names it."""
    name, _, wanted = term.partition(" ")
    option = given.get(name)
    if option is None:
        return bool((variable(name) or "").strip())  # no option of this verb, or a variable
    if not option.given or not wanted:
        return option.given
    value: Any = option.value
    if isinstance(value, list):
        return wanted == SEVERAL and len(value) > 1
    low, dots, high = (part.strip() for part in str(value).partition(".."))
    if wanted == RANGE:
        return bool(dots) and low != high
    if wanted == SEVERAL:
        last = high.rpartition("..")[2] or low
        return last.isdecimal() and int(last) > 1
    return str(value).partition("=")[0].strip().removeprefix("--") == wanted


def _name(term: str) -> str:
    return term.partition(" ")[0]


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
