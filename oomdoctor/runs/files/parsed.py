"""Asks the libraries of the user's interpreter what they make of settings.

Where a library is missing, the published names of its settings have to do. Of a script's library,
only the release is asked for.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.user_training import Document
from oomdoctor.runs.jobs.host import python_path
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.system.environment import worker_environment

_LIMIT_S = 120.0  # importing the libraries takes seconds, on a slow file system a minute
_LONGEST = 160
_DECIDE = frozenset({"trl"})  # libraries whose release decides what a script trains with


def checked(documents: Sequence[Document], python: str) -> tuple[Document, ...]:
    """The documents with what their parsers say; unchanged where no parser answers.

    Raises:
        OomDoctorError: a library refuses a setting (exit 2).
    """
    asked = [one for one in documents if not _is_script(one) or one.asked in _DECIDE]
    answers = _answers(asked, python) if asked else None
    if answers is None:
        return tuple(documents)
    by_path = {one.path: _with(one, said) for one, said in zip(asked, answers, strict=True)}
    return tuple(by_path.get(one.path, one) for one in documents)


def _is_script(document: Document) -> bool:
    """Whether it is Python, which no parser of settings reads."""
    return document.path.endswith(".py")


def _with(document: Document, answer: Mapping[str, Any]) -> Document:
    if answer["parser"] is None:
        return document
    if _is_script(document):
        return replace(document, library=answer["parser"])
    if answer["fault"] is not None:
        raise _refused(document, answer["parser"], answer["fault"])
    return replace(document, effective=answer["values"], parser=answer["parser"])


def _refused(document: Document, parser: str, fault: Mapping[str, str | None]) -> OomDoctorError:
    name, message = fault["name"], str(fault["message"])
    message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
    line = document.lines.get(name or "")
    place = document.path if line is None else f"{document.path}:{line}"
    about = f"{name}: " if name and name not in message else ""
    program = BY_NAME[document.asked].package if document.asked else "its program"
    return usage_error(
        "bad_config",
        f"--from: {place}: {about}{message} ({parser})",
        f"fix this setting; {program} itself would stop here",
    )


def _answers(documents: Sequence[Document], python: str) -> list[dict[str, Any]] | None:
    """An answer for each document; None if the interpreter gives none."""
    asked = [
        {"format": one.asked, "values": None if _is_script(one) else one.values}
        for one in documents
    ]
    with tempfile.TemporaryDirectory(prefix="oomdoctor-") as folder:
        variables = worker_environment(None) | {"PYTHONPATH": python_path(Path(folder))}
        try:
            done = subprocess.run(
                [python, "-m", "oomdoctor.worker", "--parse"],
                input=json.dumps(asked, default=str),
                env=variables,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            lines = done.stdout.strip().splitlines()
            found = json.loads(lines[-1]) if done.returncode == 0 and lines else None
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
    return found if isinstance(found, list) and len(found) == len(documents) else None
