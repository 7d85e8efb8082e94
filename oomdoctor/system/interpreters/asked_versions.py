"""The versions that `--with` asks for, such as `transformers==4.51.3,torch==2.6.0`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from oomdoctor.system.machine.libraries import numbers

# The libraries whose code a simulation runs, and those that their versions depend on.
LIBRARIES = (
    *("torch", "transformers", "accelerate", "peft", "bitsandbytes", "tokenizers", "safetensors"),
    *("huggingface-hub", "liger-kernel", "kernels", "numpy", "einops", "timm", "sentencepiece"),
)
_VERSION = re.compile(
    r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?"
)


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
            known = f"did you mean {near[0]}?" if near else f"choose from {', '.join(LIBRARIES)}"
            raise ValueError(f"{name!r} is no library that shapes a simulation; {known}")
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


def differing(asked: Iterable[str], found: Mapping[str, str | None]) -> tuple[str, ...]:
    """The requirements that the found versions do not meet.

    A build such as 2.6.0+cpu meets 2.6.0. A version that may be edited meets nothing.
    """
    return tuple(
        f"{name}=={version}"
        for name, version in names_and_versions(asked).items()
        if not is_same(version, found.get(name))
    )


def untested(asked: Iterable[str], oldest: Mapping[str, str]) -> list[str]:
    """A remark about each version that is older than the oldest one oomdoctor is tested with."""
    return [
        f"{name}=={version}: oomdoctor is tested with {oldest[name]} and newer"
        for name, version in names_and_versions(asked).items()
        if name in oldest and numbers(version) < numbers(oldest[name])
    ]


def is_same(asked: str, found: str | None) -> bool:
    """Whether a found version is the one asked for; 4.51 and 4.51.0 are the same."""
    if found is None:
        return False
    found = found.split()[0] if found.split() else ""
    if "+" not in asked:
        found = found.split("+")[0]
    return _plain(asked) == _plain(found)


def _plain(version: str) -> str:
    return re.sub(r"^(\d+(?:\.\d+)*?)(?:\.0)+(?=$|[^.\d]|\.post|\.dev)", r"\1", version)
