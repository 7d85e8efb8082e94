"""How the modules of the package stand to each other, whatever they do."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

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


def test_the_worker_names_what_it_takes_instead_of_any() -> None:
    files = [file for name, file in _modules().items() if name.startswith("oomdoctor.worker")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if re.search(r"\bAny\b", line)] == []


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
