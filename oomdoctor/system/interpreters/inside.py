"""What a new interpreter finds: the versions of libraries, and whether they can be imported.

Run as a script by that interpreter, so it uses the standard library alone.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from importlib import metadata

# Parts of torch's CUDA build that a simulation, which runs on the CPU, may do without.
_CUDA_PARTS = ("nvidia-", "cuda-", "triton", "pytorch-triton")


def versions(names: list[str]) -> dict[str, str | None]:
    """The version of each library; None if it is missing."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def import_errors(names: list[str]) -> dict[str, str]:
    """Why libraries cannot be imported; those that are not installed are left out."""
    failed = {}
    for name in names:
        if versions([name])[name] is None:
            continue
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a library may raise anything
            failed[name] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return failed


def plain_requirements(name: str) -> list[str]:
    """What a library requires, without extras and without the parts of a CUDA build."""
    lines = [line.replace("(", "").replace(")", "") for line in metadata.requires(name) or []]
    return [
        line
        for line in lines
        if re.search(r"\bextra\s*==", line) is None and not line.lower().startswith(_CUDA_PARTS)
    ]


if __name__ == "__main__":
    question, words = sys.argv[1], sys.argv[2:]
    answers = {"versions": versions, "imports": import_errors}
    answer = plain_requirements(words[0]) if question == "requires" else answers[question](words)
    sys.stdout.write("\n" + json.dumps(answer))
