"""Whether a script would handle an out-of-memory error, by its source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oomdoctor.monitor.inside.past_memory import handles

HANDLED = {
    "its own type": """
try:
    ask()
except torch.cuda.OutOfMemoryError:
    batch = 1
""",
    "a loop that tries again": """
while True:
    try:
        ask()
        break
    except torch.OutOfMemoryError as error:
        print(error)
        continue
""",
    "a text": """
def train():
    try:
        step()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()

def step():
    ask()

train()
""",
    "a function, and what it is not for is raised": """
def scale():
    for _ in range(1):
        try:
            ask()
        except Exception as error:
            if is_oom_error(error):
                break
            raise
scale()
""",
    "a decorator": """
def smaller(function):
    def decorated(*words):
        try:
            return function(*words)
        except Exception as error:
            if should_reduce_batch_size(error):
                return None
            raise
    return decorated

@smaller
def train():
    ask()

train()
""",
    "a method of a class": """
class Loop:
    def run(self):
        try:
            ask()
        except (ValueError, torch.OutOfMemoryError):
            return 3
Loop().run()
""",
    "a context": """
import contextlib
torch = __import__("types").SimpleNamespace(OutOfMemoryError=KeyError)
with contextlib.suppress(torch.OutOfMemoryError):
    ask()
""",
    "a class of its own": """
class Guard:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        return kind is not None and issubclass(kind, torch.OutOfMemoryError)
def train():
    with Guard() as guard:
        ask()
train()
""",
    "an object": """
class Guard:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        if "out of memory" in str(error):
            return True
def train(guard):
    with guard:
        ask()
train(Guard())
""",
    "a generator": """
from contextlib import contextmanager
@contextmanager
def smaller():
    try:
        yield
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
def train():
    with smaller():
        ask()
train()
""",
}
NOT_HANDLED = {
    "nothing": "ask()",
    "advice, and the end": """
import sys
try:
    ask()
except RuntimeError as error:
    if "out of memory" in str(error):
        print("use a smaller batch")
        sys.exit(1)
    raise
""",
    "advice, and the error": """
try:
    ask()
except torch.cuda.OutOfMemoryError:
    print("out of memory: use a smaller batch")
    raise
""",
    "any error": """
try:
    ask()
except Exception as error:
    print("failed", error)
""",
    "another error": """
try:
    ask()
except ValueError:
    print("no OOM")
""",
    "elsewhere": """
try:
    pass
except torch.OutOfMemoryError:
    ask()
ask()
""",
    "behind it": """
try:
    1 / 0
except ZeroDivisionError:
    try:
        ask()
    finally:
        print("oom")
""",
    "a class that only tells": """
class Note:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        if "out of memory" in str(error):
            print("use a smaller batch")
        return False
with Note():
    ask()
""",
    "a generator that raises it again": """
from contextlib import contextmanager
@contextmanager
def noted():
    try:
        yield
    except torch.OutOfMemoryError:
        print("use a smaller batch")
        raise
with noted():
    ask()
""",
    "a mode": """
import threading
with threading.Lock():
    ask()
""",
}


def _asks(source: str, file: Path) -> list[bool]:
    file.write_text(source)
    found: list[bool] = []
    names = {"ask": lambda: found.append(handles(sys._getframe(1)))}
    exec(compile(source, str(file), "exec"), names)
    return found


@pytest.mark.parametrize("what", HANDLED)
def test_a_script_that_handles_it(what: str, tmp_path: Path) -> None:
    assert _asks(HANDLED[what], tmp_path / "train.py") == [True]


@pytest.mark.parametrize("what", NOT_HANDLED)
def test_a_script_that_does_not(what: str, tmp_path: Path) -> None:
    assert _asks(NOT_HANDLED[what], tmp_path / "train.py") == [False]
