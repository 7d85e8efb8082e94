"""The versions that `--with` asks for, such as `transformers==4.51.3,torch==2.6.0`, and the
environments that it has made: where they are, what they hold, how large they are.

Each is one folder in `$XDG_CACHE_HOME/oomdoctor/environments` and can be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import site
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from oomdoctor.system.environment import cache_dir
from oomdoctor.system.machine.libraries import numbers, versions_here
from oomdoctor.system.regular_files import size_of

# The libraries whose code a simulation runs, and those that their versions depend on.
LIBRARIES = (
    *("torch", "transformers", "accelerate", "peft", "bitsandbytes", "tokenizers", "safetensors"),
    *("huggingface-hub", "liger-kernel", "kernels", "numpy", "einops", "timm", "sentencepiece"),
)
_VERSION = re.compile(
    r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?"
)
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
    packages = {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(
        path
        for path in dict.fromkeys(sys.path)
        if (path in packages or Path(path).name in ("site-packages", "dist-packages"))
        and Path(path).is_dir()
    )


def kept_environments() -> tuple[KeptEnvironment, ...]:
    """All complete environments, by name."""
    environments = []
    with contextlib.suppress(OSError):
        for folder in sorted(environments_dir().glob("[!.]*")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
                versions = tuple(map(str, about["versions"]))
                environments.append(KeptEnvironment(str(folder), versions, size_of(folder)[0]))
    return tuple(environments)


def parse_versions(texts: Iterable[str]) -> tuple[str, ...]:
    """`name==version` for each library asked for, in the order of their names.

    Raises:
        ValueError: something is not `name==version`, is no library that counts, or comes twice.
    """
    asked: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        if not part:
            continue
        name, sign, version = (word.strip() for word in part.partition("=="))
        name = re.sub(r"[-_.]+", "-", name).lower()
        if not sign and re.fullmatch(r"[a-z0-9-]+", name) is None:
            raise ValueError(f"{part!r} is not name==version, such as transformers==4.51.3")
        if name not in LIBRARIES:
            near = get_close_matches(name, LIBRARIES, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(LIBRARIES)}"
            raise ValueError(f"{name!r} is no library that shapes a simulation; {hint}")
        if _VERSION.fullmatch(version) is None:
            raise ValueError(f"{part!r} needs one exact version: write {name}==VERSION")
        if asked.get(name, version) != version:
            raise ValueError(f"{name} is given twice, with {asked[name]} and {version}")
        asked[name] = version
    if not asked:
        raise ValueError("names no library; write transformers==4.51.3")
    return tuple(f"{name}=={asked[name]}" for name in sorted(asked))


def names_and_versions(asked: Iterable[str]) -> dict[str, str]:
    """The version of each library in what `parse_versions` returned."""
    return dict(requirement.split("==", 1) for requirement in asked)


def differing(asked: Iterable[str], installed: Mapping[str, str | None]) -> tuple[str, ...]:
    """The requirements that the found versions do not meet.

    A build such as 2.6.0+cpu meets 2.6.0. A version that may be edited meets nothing.
    """
    return tuple(
        f"{name}=={version}"
        for name, version in names_and_versions(asked).items()
        if not is_same(version, installed.get(name))
    )


def untested(asked: Iterable[str], oldest: Mapping[str, str]) -> list[str]:
    """A remark about each version that is older than the oldest one oomdoctor is tested with."""
    return [
        f"{name}=={version}: oomdoctor is tested with {oldest[name]} and newer"
        for name, version in names_and_versions(asked).items()
        if name in oldest and numbers(version) < numbers(oldest[name])
    ]


def is_same(asked: str, installed: str | None) -> bool:
    """Whether a found version is the one asked for; 4.51 and 4.51.0 are the same."""
    if installed is None:
        return False
    installed = installed.split()[0] if installed.split() else ""
    if "+" not in asked:
        installed = installed.split("+")[0]
    return _plain(asked) == _plain(installed)


def _plain(version: str) -> str:
    return re.sub(r"^(\d+(?:\.\d+)*?)(?:\.0)+(?=$|[^.\d]|\.post|\.dev)", r"\1", version)
