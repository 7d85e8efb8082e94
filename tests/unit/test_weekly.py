"""What runs once a week only: rows of a test that keeps one for every change, and benchmarks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("tests", "scripts")
ROWS = """
import pytest

@pytest.mark.parametrize("row", ["always", pytest.param("rare", marks=pytest.mark.weekly)])
def test_of_rows(row):
    pass
"""


def _named(tree: ast.AST, name: str) -> list[ast.Call]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == name]


def _rows(call: ast.Call) -> list[ast.expr]:
    """The rows of a `parametrize`; a table that it unpacks counts as one."""
    return call.args[1].elts if isinstance(call.args[1], ast.List) else []


def _decorators(tree: ast.AST) -> list[ast.expr]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [one for function in functions for one in function.decorator_list]


def test_each_test_with_weekly_rows_keeps_one() -> None:
    found = 0
    for file in (file for part in PARTS for file in (ROOT / part).rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for call in _named(tree, "parametrize"):
            weekly = [row for row in _rows(call) if _named(row, "weekly")]
            assert not weekly or len(weekly) < len(_rows(call)), f"{file.name}:{call.lineno}"
            found += len(weekly)
        in_rows = [row for call in _named(tree, "parametrize") for row in _rows(call)]
        elsewhere = len(_named(tree, "weekly")) - sum(len(_named(r, "weekly")) for r in in_rows)
        assert elsewhere == 0, f"{file.name}: weekly is for rows of a test, not for a whole one"
        whole = "mark.weekly" in "".join(map(ast.unparse, _decorators(tree)))
        assert not whole or "benchmarks" in file.parts, f"{file.name}: a whole test is weekly"
    assert found > 10


def test_they_run_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_rows.py").write_text(ROWS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = weekly: rare\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    for options, said in (((), "1 passed, 1 deselected"), (("--weekly",), "2 passed")):
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert said in done.stdout, done.stdout + done.stderr
