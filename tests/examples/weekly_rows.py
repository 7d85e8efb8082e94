"""Rows of a test that another of its rows stands for, except once a week."""

from __future__ import annotations

from typing import Any

import pytest


def weekly(*values: Any, id: str | None = None, marks: Any = ()) -> Any:
    """A row of `parametrize` that runs with `--weekly` only."""
    more = marks if isinstance(marks, list | tuple) else [marks]
    return pytest.param(*values, id=id, marks=[pytest.mark.weekly, *more])
