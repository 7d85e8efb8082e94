"""The environments that `--with` has made: where they are, what they hold, how large they are.

Each is one folder in `$XDG_CACHE_HOME/oomdoctor/environments` and can be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import site
import sys
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.system.environment import cache_dir
from oomdoctor.system.interpreters.asked_versions import differing, names_and_versions
from oomdoctor.system.machine.libraries import versions_here

ABOUT = "environment.json"
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class KeptEnvironment:
    """An environment that `--with` made. `size_bytes` is what it takes on disk."""

    path: str
    versions: tuple[str, ...]
    size_bytes: int


def environments_dir() -> Path:
    """The folder of all kept environments; it may not exist yet."""
    return cache_dir() / "environments"


def folder_of(asked: tuple[str, ...]) -> Path:
    """The folder of the environment with these versions.

    Its name depends on everything it is built on: this interpreter and the libraries in it.
    """
    basis = {"asked": asked, "here": versions_here(), "folders": shared_folders()}
    digest = hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()
    words = "-".join(f"{n}-{v}" for n, v in names_and_versions(asked).items())
    return environments_dir() / f"{re.sub(r'[^a-z0-9.-]', '-', words)[:_LONGEST_NAME]}-{digest[:8]}"


def interpreter_with(asked: tuple[str, ...]) -> str:
    """The interpreter with these versions: this one if it has them, else one that may be made."""
    if not differing(asked, versions_here()):
        return sys.executable
    return str(python_in(folder_of(asked)))


def python_in(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def is_ready(folder: Path) -> bool:
    """Whether an environment is complete, and the Python that it was made from still exists."""
    return (folder / ABOUT).is_file() and python_in(folder).exists()


def shared_folders() -> tuple[str, ...]:
    """The folders with the packages of this interpreter, which new environments share."""
    known = {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(
        path
        for path in dict.fromkeys(sys.path)
        if (path in known or Path(path).name in ("site-packages", "dist-packages"))
        and Path(path).is_dir()
    )


def kept_environments() -> tuple[KeptEnvironment, ...]:
    """All complete environments, by name."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(environments_dir().glob("[!.]*")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
                versions = tuple(map(str, about["versions"]))
                found.append(KeptEnvironment(str(folder), versions, _size(folder)))
    return tuple(found)


def _size(folder: Path) -> int:
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118
    return size
