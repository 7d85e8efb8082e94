"""Turns option dataclasses into the flat signature that typer reads.

typer learns a verb's options from the signature of a function. A verb here takes dataclasses
instead, so that mypy checks every option that is read and `probe` and `plan` share declarations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter
from typing import Annotated, Any, get_type_hints

import typer

from oomdoctor.cli.options import PANELS, option_of, option_rows


def flatten(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a verb by one parameter for each of its fields."""
    hints = get_type_hints(verb, include_extras=True)
    own = inspect.signature(verb).parameters

    @wraps(verb)
    def flat(**given: Any) -> None:
        verb(**{name: _collected(hints[name], name, given) for name in own})

    parameters = [new for name in own for new in _parameters(name, hints[name], own[name].default)]
    flat.__dict__["__signature__"] = inspect.Signature(sorted(parameters, key=_place))
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def leaves(options: object) -> Iterator[tuple[str, object]]:
    """The name and value of every option in a dataclass and in the dataclasses inside it."""
    for field in fields(options):  # type: ignore[arg-type]
        value = getattr(options, field.name)
        if is_dataclass(value):
            yield from leaves(value)
        else:
            yield field.name, value


def typed_options(context: typer.Context) -> frozenset[str]:
    """The names of the parameters that were given on the command line."""
    return frozenset(
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    )


def _parameters(
    name: str, hint: Any, default: Any, defaults: Mapping[str, str] | None = None
) -> Iterator[Parameter]:
    """The parameters of an option, or of a dataclass; `defaults` are texts for its help."""
    if not is_options(hint):
        shown = (defaults or {}).get(name)
        if shown is not None:
            info = copy(hint.__metadata__[0])
            info.help = f"{info.help}  [default: {shown}]"
            hint = Annotated[hint.__origin__, info]
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        return
    for field in fields(hint):
        inner = field.metadata.get("defaults", defaults)
        yield from _parameters(field.name, declared_types(hint)[field.name], field.default, inner)


def _collected(hint: Any, name: str, given: dict[str, Any]) -> Any:
    if not is_options(hint):
        return given[name]
    return hint(
        **{f.name: _collected(declared_types(hint)[f.name], f.name, given) for f in fields(hint)}
    )


def _place(parameter: Parameter) -> int:
    """Sorts parameters: arguments first, then the options in the order of the panels."""
    (info,) = getattr(parameter.annotation, "__metadata__", (None,))
    panel = getattr(info, "rich_help_panel", None)
    return PANELS.index(panel) if panel in PANELS else -1


def is_options(hint: object) -> bool:
    """Whether the type of a field is a class of options."""
    return isinstance(hint, type) and is_dataclass(hint)


@cache
def declared_types(kind: type) -> dict[str, Any]:
    """The types of the fields of an option dataclass, annotated with its rows in `options.toml`."""
    rows = option_rows().get(kind.__name__.removesuffix("Options").lower(), {})
    hints = get_type_hints(kind, include_extras=True)
    return hints | {name: Annotated[hints[name], option_of(row)] for name, row in rows.items()}
