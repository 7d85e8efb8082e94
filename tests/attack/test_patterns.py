"""No expression takes long for a line made to slow it, and no text takes more than linear time."""

from __future__ import annotations

import time

import pytest

from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from tests.attack.patterns import TIMES, Expression, expressions, slow_unit

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 88, in main
    loss = model(x).loss
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def test_expressions_are_collected() -> None:
    """Those of modules, of tables, of calls and of data."""
    every = expressions()
    places = {one.place.split(":")[0] for one in every}
    assert len(every) > 700
    assert {"frames.toml", "causes.toml", "oomdoctor.redaction"} <= places


def test_a_slow_expression_is_seen() -> None:
    assert slow_unit(Expression(r"(\d+)+x", 0, ("search",), "here"))


def test_no_expression_is_slow() -> None:
    """Lines of 4,000 characters, which readers look at, take as long as a plain search."""
    slow = {
        f"{one.place} {one.pattern[:80]}": unit for one in expressions() if (unit := slow_unit(one))
    }
    assert not slow, f"more than {TIMES} times as long as a plain search"


@pytest.mark.parametrize(
    "unit", ["--A", "exit", "1", "a ", "_", 'File "', "{'a': ", "1-", "| ", "\\n"]
)
def test_a_log_takes_time_in_proportion(unit: str) -> None:
    """`--A` and `exit` took over ten seconds for 80 kB."""
    times = []
    for length in (20_000, 80_000):
        line = (unit * length)[:length]
        text = f"{TRACEBACK}{line}\n{line}: error\n    {line}\n{TRACEBACK}"
        began = time.process_time()
        scan(lines([text.encode()]))
        times.append(time.process_time() - began)
    assert times[1] < 8 * times[0] + 0.5
    assert times[1] < 5
