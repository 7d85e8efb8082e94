"""`oomdoctor recipes`: list the built-in ladders, copy one, check your own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from oomdoctor.cli.help import Command, Commands
from oomdoctor.cli.options import answer, option_named
from oomdoctor.cli.streams import output
from oomdoctor.errors import usage_error

T = TypeVar("T")
# A missing argument is None and is reported here, because typer's message depends on the version of
# click.
_Name = Annotated[str | None, option_named("recipes", "name")]


def _examples(*lines: str) -> str:
    """The end of a help text."""
    typed = "".join(f"  oomdoctor recipes {line}\n" for line in lines)
    return f"\b\nExamples:\n{typed}Next: `oomdoctor probe gpt2 --recipe mine.toml`\n"


app = typer.Typer(
    cls=Commands,
    help="List the recipes; show, copy or check one.",
    epilog=_examples("show qlora", "copy default mine.toml"),
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def list_recipes(context: typer.Context, json_: answer.ListJson = False) -> None:
    """List the recipes; show, copy or check one."""
    if context.invoked_subcommand is not None:
        return
    from oomdoctor.render.lists import recipe_list
    from oomdoctor.system.recipes.recipes import load_recipe, recipe_names

    recipes = tuple(map(load_recipe, recipe_names()))
    output.publish(recipe_list(recipes).text, "json" if json_ else "table")


@app.command("show", cls=Command, epilog=_examples("show qlora", "show default --json"))
def show_recipe(name: _Name = None, json_: answer.ListJson = False) -> None:
    """Print a recipe, comments included.

    With --json, prints every key of every configuration.
    """
    from oomdoctor.render.lists import Listing
    from oomdoctor.system.recipes.recipes import load_recipe, recipe_text

    name = _given("show", "NAME", name)
    text = recipe_text(name)
    if json_:
        content = {"recipe": load_recipe(name)}
        output.publish(Listing("recipes show", content).text, "json")
    else:
        output.print_answer(text, utf8=True)


@app.command(
    "copy", cls=Command, epilog=_examples("copy default mine.toml", "copy lora mine.toml --force")
)
def copy_recipe(
    name: _Name = None,
    path: Annotated[Path | None, option_named("recipes", "path")] = None,
    force: Annotated[bool, option_named("recipes", "force")] = False,
) -> None:
    """Copy a recipe to a file that you can edit."""
    from oomdoctor.system.recipes.recipes import recipe_text

    name, path = _given("copy", "NAME", name), _given("copy", "PATH", path)
    text = recipe_text(name)
    target = path / f"{name}.toml" if path.is_dir() else path
    if target.exists() and not force:
        raise usage_error(
            "exists", f"{target} already exists", "choose another PATH, or add --force"
        )
    output.check_writable(target)
    output.write_file(target, text)
    output.say(f"copied; after editing: oomdoctor recipes check {shlex.quote(str(target))}")


@app.command("check", cls=Command, epilog=_examples("check mine.toml", "check ~/recipes/lora.toml"))
def check_recipe_file(file: Annotated[Path | None, option_named("recipes", "file")] = None) -> None:
    """Check a recipe file.

    Lists every error with its line and key. Exit code 2 if there is one.
    """
    from oomdoctor.system.recipes.recipes import check_recipe

    file = _given("check", "FILE", file)
    faults = check_recipe(file)
    if faults:
        raise usage_error(
            "bad_recipe", "\n".join(faults), "see an example: oomdoctor recipes show default"
        )
    output.print_answer(f"{file}: no errors")


def _given(command: str, name: str, value: T | None) -> T:
    if value is None:
        raise usage_error(
            "usage", f"{name} is missing", f"run `oomdoctor recipes {command} --help`"
        )
    return value
