"""Run the evaluation scripts in pytest's process, which has loaded torch already."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import pytest
from cases import each_case

from oomdoctor.worker.host import clean_slate


@dataclass(frozen=True, slots=True)
class Ended:
    """What a script printed and its exit code."""

    returncode: int
    stdout: str
    stderr: str


class Here(Executor):
    """Does the work at once in this process, one item after the other."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with clean_slate():
            future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture
def script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs `main` of a script with these arguments. A pool would load torch for every test."""

    def run(name: str, *arguments: str) -> Ended:
        monkeypatch.setattr(each_case, "_pool", lambda processes: Here())
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        code = importlib.import_module(name).main()
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return run
