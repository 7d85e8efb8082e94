"""`oomdoctor recipes`: see the ladders that come along, copy one out, check your own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from oomdoctor.cli.commands import Command, Commands
from oomdoctor.cli.options import answer
from oomdoctor.cli.streams import output
from oomdoctor.errors import usage_error

if TYPE_CHECKING:
    from oomdoctor.records.config import Recipe

T = TypeVar("T")
EPILOG = """\b
Examples:
  oomdoctor recipes show qlora
  oomdoctor recipes copy default mine.toml
Next: `oomdoctor probe MODEL --recipe mine.toml`
"""
# None stands for a missing argument, which is told here: what typer makes of one depends on the
# version of click beside it.
_Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A recipe from `oomdoctor recipes`.", show_default=False),
]

app = typer.Typer(
    cls=Commands,
    help="List the recipes; show, copy or check one.",
    epilog=EPILOG,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def list_recipes(context: typer.Context, json_: answer.ListJson = False) -> None:
    """List the recipes; show, copy or check one."""
    if context.invoked_subcommand is not None:
        return
    from oomdoctor.render.lists.listing import render_recipes
    from oomdoctor.system.recipes.recipes import recipe_names

    recipes = tuple(_load(name) for name in recipe_names())
    output.publish_listing(partial(render_recipes, recipes), json_)


@app.command("show", cls=Command, epilog=EPILOG)
def show_recipe(name: _Name = None, json_: answer.ListJson = False) -> None:
    """Print a recipe as it is, comments included; --json prints its rungs in full."""
    from oomdoctor.render.lists.listing import render_recipe
    from oomdoctor.system.recipes.recipes import recipe_text

    name = _given("show", "NAME", name)
    text = recipe_text(name)
    if json_:
        output.publish_listing(partial(render_recipe, _load(name)), as_json=True)
    else:
        output.print_answer(text, utf8=True)


@app.command("copy", cls=Command, epilog=EPILOG)
def copy_recipe(
    name: _Name = None,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="A new file, or a folder for it.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Copy a recipe to a file of your own, to change it."""
    from oomdoctor.system.recipes.recipes import recipe_text

    name, path = _given("copy", "NAME", name), _given("copy", "PATH", path)
    text = recipe_text(name)
    target = path / f"{name}.toml" if path.is_dir() else path
    if target.exists() and not force:
        raise usage_error(
            "exists", f"{target} is there already", "choose another PATH, or add --force"
        )
    output.check_writable(target)
    output.write_file(target, text)
    output.say(f"copied; next: oomdoctor probe MODEL --recipe {target}")


@app.command("check", cls=Command, epilog=EPILOG)
def check_recipe_file(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A recipe of your own.", show_default=False),
    ] = None,
) -> None:
    """Check a recipe: every fault with its line and key. Exit code 2 when there is one."""
    from oomdoctor.system.recipes.recipes import check_recipe

    file = _given("check", "FILE", file)
    faults = check_recipe(file)
    if faults:
        raise usage_error(
            "bad_recipe", "\n".join(faults), "`oomdoctor recipes show default` is an example"
        )
    output.print_answer(f"{file}: no faults")


def _given(command: str, name: str, value: T | None) -> T:
    if value is None:
        raise usage_error(
            "usage", f"{name} is missing", f"run `oomdoctor recipes {command} --help`"
        )
    return value


def _load(name: str) -> Recipe:
    from oomdoctor.system.recipes.recipes import load_recipe

    return load_recipe(name, sequence_length=None, effective_batch_size=None, micro_batch_size=None)
