"""How the modules of the package stand to each other, whatever they do."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import typer

from oomdoctor.cli.main import app

PACKAGE = Path(__file__).parents[2] / "oomdoctor"


def _modules() -> dict[str, Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    names = [file.relative_to(PACKAGE.parent).with_suffix("").parts for file in files]
    return {
        ".".join(name).removesuffix(".__init__"): file
        for name, file in zip(names, files, strict=True)
    }


def _imports(file: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports: also in functions, and for types only."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = _modules()
    graph = {name: {*_imports(file, modules)} - {name} for name, file in modules.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_no_basename_stands_for_more_than_three_modules() -> None:
    names = Counter(file.name for file in PACKAGE.rglob("[!_]*.py"))
    assert not {name: count for name, count in names.items() if count > 3}


def test_names_say_what_a_thing_is() -> None:
    """Not that it was found, or is one of several."""
    vague = {"found", "known", "one", "ones"}
    names = [
        f"{module}:{node.lineno} {name}"
        for module, file in _modules().items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and _is_bound(node))
        for name in (node.arg if isinstance(node, ast.arg) else node.id,)
        if name in vague
    ]
    assert names == []


def _is_bound(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def test_the_worker_names_what_it_takes_instead_of_any() -> None:
    files = [file for name, file in _modules().items() if name.startswith("oomdoctor.worker")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if re.search(r"\bAny\b", line)] == []


def test_stacks_read_into_a_partial_configuration_that_names_its_keys() -> None:
    files = [file for name, file in _modules().items() if name.startswith("oomdoctor.stacks")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    used = [line for line in lines if re.search(r"\bAny\b", line) and "import" not in line]
    assert len(used) <= 60


def test_modules_of_the_worker_import_only_torch_at_their_head() -> None:
    # Unsloth changes transformers, peft and TRL, so it comes before them; others may be missing.
    heads = {
        (name, imported.partition(".")[0])
        for name, file in _modules().items()
        if name.startswith("oomdoctor.worker")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        for imported in _names(node)
    }
    allowed = {*sys.stdlib_module_names, "oomdoctor", "torch"}
    assert {head for head in heads if head[1] not in allowed} == set()


def _names(node: ast.stmt) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


# Each has a reason to stand alone: what runs in another process, is compiled, or is data.
_BOUNDARIES = {"monitor/inside/entry", "emulator/native", "emulator/native/cuda_names"}
# What belongs to no single command. `ladder` is what `probe` and `plan` share.
_SHARED = {"ladder", "jobs", "devices", "events", "user_training"}


def _folders() -> set[Path]:
    """The folders with code, data left out. What Python left of a moved folder does not count."""
    return {
        file.parent
        for file in PACKAGE.rglob("*")
        if file.is_file()
        and file.parent != PACKAGE
        and not {"__pycache__", "data"} & {*file.relative_to(PACKAGE).parts}
    }


def test_folders_are_few_shallow_and_worth_it() -> None:
    folders = {str(folder.relative_to(PACKAGE)): folder for folder in _folders()}
    assert len(folders) <= 85
    assert all(name.count("/") <= 2 for name in folders)  # oomdoctor/a/b/c
    assert {name for name, folder in folders.items() if _parts(folder) < 3} <= _BOUNDARIES


def _parts(folder: Path) -> int:
    """How many modules and packages a folder has."""
    packages = [each for each in folder.iterdir() if (each / "__init__.py").exists()]
    return len(packages) + len([*folder.glob("[!_]*.py")])


def test_each_package_says_what_it_is() -> None:
    files = list(PACKAGE.rglob("__init__.py"))
    silent = [file for file in files if not ast.get_docstring(ast.parse(file.read_text("utf-8")))]
    assert not silent


def test_what_a_command_has_is_named_for_it_on_every_layer() -> None:
    """Each module of `commands` and each page begins with the word of a command."""
    words = {*typer.main.get_command(app).commands}  # type: ignore[attr-defined]
    assert {f"{word}.py" for word in words - {"gpus", "models"}} <= {
        file.name for file in (PACKAGE / "cli").iterdir()
    }
    commands = {path.stem for path in (PACKAGE / "commands").glob("[!_]*")} - _SHARED
    pages = {path.stem.removesuffix("_page") for path in (PACKAGE / "render").glob("*_page.py")}
    for name in commands | pages - {"ladder"}:
        assert name.split("_")[0] in words, name


def test_import_contracts_cover_every_package() -> None:
    """Each part of the package has its layer, and no part of a package is in a circle."""
    tables = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = tables["tool"]["importlinter"]["contracts"]
    layered = [each for each in contracts if each["type"] == "layers"]
    floors = next(each for each in layered if each["containers"] == ["oomdoctor"])
    assert floors["exhaustive"] and floors["exhaustive_ignores"] == ["__main__"]
    circles = [each for each in contracts if each["type"] == "acyclic_siblings"]
    assert [{*each} for each in circles] == [{"name", "type", "ancestors"}]
    assert circles[0]["ancestors"] == ["oomdoctor"]
    containers = {name for each in layered for name in each["containers"]}
    assert all((PACKAGE.parent / name.replace(".", "/")).is_dir() for name in containers)
