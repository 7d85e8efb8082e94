"""What runs first in a watched process: its table names functions that exist."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import oomdoctor.monitor.inside as inside

ENTRY = Path(inside.__file__).parent / "entry" / "sitecustomize.py"


def test_what_runs_after_an_import_is_there() -> None:
    """An error in this file is swallowed: the user's program must not notice it."""
    rows = []
    for node in ast.parse(ENTRY.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and "_AFTER" in ast.unparse(node.targets[0]):
            value = re.sub(r"\b_[A-Z]+\b", "''", ast.unparse(node.value))
            table = ast.literal_eval(value)
            rows += table if isinstance(table[0], tuple) else [table]
    assert len(rows) >= 6
    for _, module, function, *_ in rows:
        spec = find_spec(f"{inside.__name__}.{module}")
        assert spec is not None and spec.origin is not None, module
        source = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        assert function in {n.name for n in source.body if isinstance(n, ast.FunctionDef)}
