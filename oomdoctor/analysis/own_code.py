"""Whether a line is the user's own: the one rule of run, watch, snapshot and explain.

Most paths tell it. A process that runs also knows which folders hold its packages, and its script.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache, lru_cache

from oomdoctor.package_data import data_of

_KERNEL = re.compile(r"ipykernel_\d+")  # in the name of a cell, the process that ran it
_OURS = "oomdoctor/monitor/"
# `<frozen runpy>` and `<string>` are no files of the user's; a cell and what is typed are.
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|/lib(?:64)?/(?:python|pypy)\d|/Lib/|^/usr/lib(?:64)?/|\.venv/lib"
    r"|/(?i:python\d+|(?:ana|mini)conda\d*|mini(?:forge|mamba)\d*|envs/[^/]+)/lib/"
    r"|/conda/envs/[^/]+/lib/|/__pypackages__/|\.(?:zip|egg|whl|pex)/|"
    + _OURS
    + r"|torchinductor_|oomdoctor/emulator/inductor/|/torch_extensions/|/\.triton/"
    r"|/transformers_modules/|/datasets_modules/|unsloth_compiled_cache|__torch__|^$|^\?\?|^<(?!ipython|module|stdin)|/s?bin/[^/.]+$"
    r"|\.(?:pyx|pxi|c|cc|cpp|cu|cuh|h|hpp|inl|S|so[\d.]*)$"
)


def is_own(file: str, libraries: Collection[str] = (), script: str | None = None) -> bool:
    """Whether a file is the user's own code, by its path.

    `libraries` are folders and files of packages, if a process named them. The `script` that was
    started is the user's, also if a package installed it, but not the few lines that pip wrote to
    start a program such as `axolotl`.
    """
    path = file.replace("\\", "/")
    if script is not None and file == script:
        folder, _, name = path.rpartition("/")
        return "." in name or folder not in libraries
    folders = tuple(f"{library.rstrip('/')}/" for library in libraries)
    return not _is_library(path) and path not in libraries and not path.startswith(folders)


def place_of(file: str, line: int) -> str:
    """The name of a line, the same in each run of a command: a cell's has no process in it."""
    return f"{_KERNEL.sub('ipykernel', file)}:{line}"


def is_ours(file: str) -> bool:
    """Whether a file is one of those with which oomdoctor watches a process."""
    return _OURS in file.replace("\\", "/")


def known_packages() -> tuple[str, ...]:
    """The names of packages whose code is a library's wherever they lie."""
    return tuple(data_of("libraries.toml"))


@lru_cache(maxsize=4096)
def _is_library(path: str) -> bool:
    return bool(_LIBRARY.search(path) or _in_a_known_package().search(path))


@cache
def _in_a_known_package() -> re.Pattern[str]:
    inside = {name: joined(parts) for name, parts in data_of("libraries.toml").items()}
    return re.compile("|".join(f"(?:^|/){name}/(?:{parts})" for name, parts in inside.items()))


def joined(pattern: str) -> str:
    """A pattern of a file without its line breaks and indents."""
    return "".join(line.strip() for line in pattern.splitlines())
