"""The interpreter that has the training programs of --from.

It is `OOMDOCTOR_STACKS_PYTHON`, or `.venv-stacks` in the repository (scripts/stacks-venv.sh).
Without it these tests are skipped, except where `OOMDOCTOR_REQUIRE_STACKS_PYTHON=1` says that it
has to be there, as in CI.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# Read before the tests are isolated from the developer's settings.
_GIVEN = os.environ.get("OOMDOCTOR_STACKS_PYTHON", str(ROOT / ".venv-stacks/bin/python"))
_REQUIRED = os.environ.get("OOMDOCTOR_REQUIRE_STACKS_PYTHON") == "1"
Ask = Callable[[str, Sequence[Mapping[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def stacks_python() -> str:
    """The interpreter."""
    if Path(_GIVEN).is_file():
        return _GIVEN
    reason = f"no interpreter with the training programs at {_GIVEN}: scripts/stacks-venv.sh"
    if _REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def run_there(stacks_python: str) -> Callable[..., str]:
    """Runs that interpreter with arguments and standard input; its standard output."""

    def run(*arguments: str, given: str) -> str:
        # LLaMA-Factory 0.9.5 refuses releases of transformers that are newer than it.
        variables = os.environ | {
            "PYTHONPATH": str(ROOT),
            "DISABLE_VERSION_CHECK": "1",
            "HF_HUB_OFFLINE": "1",
        }
        done = subprocess.run(
            [stacks_python, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=240,
            env=variables,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def ask(run_there: Callable[..., str]) -> Ask:
    """The answers of a program's own parser about several files, asked in one process."""

    def asked(program: str, files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        given = json.dumps([{"format": program, "values": values} for values in files])
        text = run_there("-m", "oomdoctor.worker", "--parse", given=given)
        answers: list[dict[str, Any]] = json.loads(text.splitlines()[-1])
        assert len(answers) == len(files)
        return answers

    return asked
