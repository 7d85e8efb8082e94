"""Recipes: ladders as TOML files, those that come along and those a user wrote.

A recipe is checked as a whole and all its faults are shown at once, each with its line and key.
What a key accepts is said in `system.rungs`; what a machine can do is for the worker to say.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.config import Recipe, Rung
from oomdoctor.system.recipes.rungs import (
    LABEL,
    KeyFault,
    build_rung,
    nearest,
    read_values,
    read_words,
)
from oomdoctor.system.recipes.toml_lines import Lines, find_lines

NONE = "none"
_TOP_KEYS = ("description", "defaults", "rung")
_PACKAGE = Path(__file__).parents[2]


class Sizes(TypedDict):
    """What the command line says about every rung; None says nothing."""

    sequence_length: int | None
    effective_batch_size: int | None
    micro_batch_size: int | None


_NO_SIZES: Sizes = {
    "sequence_length": None,
    "effective_batch_size": None,
    "micro_batch_size": None,
}


def recipe_names() -> tuple[str, ...]:
    """The recipes that come along, the default one first."""
    return tuple(
        sorted((p.stem for p in _folder().glob("*.toml")), key=lambda n: (n != "default", n))
    )


def recipe_text(name: str) -> str:
    """The text of a recipe that comes along, comments included.

    Raises:
        OomDoctorError: there is no recipe of that name (exit 2).
    """
    if name not in recipe_names():
        raise _unknown(name)
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def load_recipe(name_or_path: str, **sizes: Unpack[Sizes]) -> Recipe:
    """A recipe by name or by file; "none" has no rungs.

    Sequence length and effective batch size are taken where the recipe fixes none, the micro-batch
    size where the recipe leaves it "auto".

    Raises:
        OomDoctorError: there is no such recipe, or it has faults; all of them are told (exit 2).
    """
    if name_or_path == NONE:
        return Recipe(NONE, "only the rungs of the command line", (), "command line")
    if name_or_path in recipe_names():
        path, source = _folder() / f"{name_or_path}.toml", "built-in"
    else:
        path = Path(name_or_path).expanduser()
        source = name_or_path
        if not path.exists():
            raise _unknown(name_or_path)
    description, rungs, faults = _read(path, sizes)
    if faults:
        count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise usage_error(
            "bad_recipe",
            "\n".join([f"the recipe {name_or_path} has {count}:", *faults]),
            "`oomdoctor recipes show default` is an example of every common key",
        )
    return Recipe(path.stem, description, rungs, source)


def check_recipe(path: Path) -> tuple[str, ...]:
    """What is wrong with a recipe, as lines `FILE:LINE: what`; empty when it is good."""
    return tuple(_read(path, _NO_SIZES)[2])


def parse_rung(text: str, **sizes: Unpack[Sizes]) -> Rung:
    """A rung from `key=value,key=value`, such as `method=lora,lora_rank=64,micro_batch_size=4`.

    Several LoRA targets are joined by a plus: `lora_targets=q_proj+v_proj`.

    Raises:
        OomDoctorError: something is wrong; all faults are told (exit 2).
    """
    words: dict[str, str] = {}
    faults: list[KeyFault] = []
    for part in text.split(","):
        key, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not word:
            faults.append((key or "key", f"write key=value, not {part.strip()!r}"))
        elif key in words:
            faults.append((key, "is given twice"))
        else:
            words[key] = word
    values, value_faults = read_values(read_words(words))
    faults += value_faults
    if not faults:
        rung, faults = build_rung(values, **sizes)
        if not faults:
            return rung
    shown = text if len(text) <= 200 else text[:197] + "..."
    raise usage_error(
        "bad_rung",
        "\n".join(f"--rung {shown!r}: {key}: {what}" for key, what in faults),
        "--rung method=lora,lora_rank=64,micro_batch_size=4 is an example; the keys are those of "
        "`oomdoctor recipes show default`",
    )


def _folder() -> Path:
    """Where the recipes are: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / "_recipes"
    return inside if inside.is_dir() else _PACKAGE.parent / "recipes"


def _unknown(name: str) -> OomDoctorError:
    names = [*recipe_names(), NONE]
    return usage_error(
        "unknown_recipe",
        f"there is neither a recipe nor a file called {name}{nearest(name, names)}",
        f"the recipes are {', '.join(names)}; `oomdoctor recipes copy default mine.toml` makes "
        "one of your own",
    )


def _read(path: Path, sizes: Sizes) -> tuple[str, tuple[Rung, ...], list[str]]:
    """Description, rungs and faults of a file; rungs only count when there is no fault."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        return "", (), [f"{path}: cannot be read: {error.strerror}"]
    except UnicodeDecodeError:
        return "", (), [f"{path}: is not text in UTF-8"]
    except (ValueError, RecursionError) as error:
        return "", (), [_syntax_fault(path, text, error)]
    reader = _Reader(path, find_lines(text), sizes)
    reader.read(document)
    return str(document.get("description", "")), tuple(reader.rungs), reader.told()


def _syntax_fault(path: Path, text: str, error: Exception) -> str:
    message = str(error)
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", message)
    line = int(place[1]) if place and place[1] else text.count("\n") + 1 if place else 1
    what = message.replace(place[0], "") if place else message
    column = f" in column {place[2]}" if place and place[2] else ""
    return f"{path}:{line}: not TOML: {what[:1].lower()}{what[1:]}{column}"


class _Reader:
    """Collects the rungs of one file and every fault with its line."""

    def __init__(self, path: Path, lines: Lines, sizes: Sizes) -> None:
        self.path, self.lines, self.sizes = path, lines, sizes
        self.rungs: list[Rung] = []
        self._faults: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}
        self._configs: dict[str, int] = {}

    def told(self) -> list[str]:
        """The faults as lines of text, in the order of the file."""
        ordered = sorted(self._faults, key=lambda fault: fault[0])
        return [f"{self.path}:{line}: {what}" for line, what in ordered]

    def read(self, document: Mapping[str, Any]) -> None:
        """Check a parsed file from top to bottom."""
        for key in document:
            if key not in _TOP_KEYS:
                self._fault(key, 0, None, f"{key}: is not a key{nearest(key, _TOP_KEYS)}")
        if not isinstance(document.get("description", ""), str):
            self._fault("", 0, "description", "description: must be a string")
        defaults = document.get("defaults", {})
        if not isinstance(defaults, dict):
            self._fault("defaults", 0, None, "defaults: must be a table, written [defaults]")
            defaults = {}
        good, faults = read_values(defaults)
        if good.pop(LABEL, None) is not None:
            faults.append((LABEL, "belongs to a single rung"))
        for key, what in faults:
            self._fault("defaults", 0, key, f"defaults: {key}: {what}")
        rungs = document.get("rung", [])
        if not isinstance(rungs, list) or not all(isinstance(rung, dict) for rung in rungs):
            self._fault("rung", 0, None, "rung: must be an array of tables, each written [[rung]]")
        elif not rungs:
            self._fault("rung", 0, None, "there is no [[rung]]")
        else:
            self._read_rungs(rungs, good, set(defaults), sound=not faults)

    def _read_rungs(
        self,
        rungs: list[dict[str, Any]],
        defaults: Mapping[str, Any],
        default_keys: Iterable[str],
        *,
        sound: bool,
    ) -> None:
        for index, table in enumerate(rungs):
            own, faults = read_values(table)
            label = own.get(LABEL)
            if not faults and sound:  # else a contradiction may only be the echo of a fault
                rung, faults = build_rung({**defaults, **own}, **self.sizes)
                label = rung.label
                faults += self._repeated(index, rung)
                self.rungs.append(rung)
            head = f"rung {index + 1} ({label})" if label else f"rung {index + 1}"
            for key, what in faults:
                place = ("rung", index)
                if key not in table and key in default_keys:
                    place = ("defaults", 0)
                self._fault(*place, key, f"{head}: {key}: {what}")

    def _repeated(self, index: int, rung: Rung) -> list[KeyFault]:
        # By rung_key: attempts at all micro-batch sizes of a configuration belong to one rung.
        same = self._configs.setdefault(rung.config.rung_key(), index)
        if same != index:
            what = f"is the same configuration as rung {same + 1}, at most at another micro-batch"
            return [("micro_batch_size", what)]
        same = self._labels.setdefault(rung.label, index)
        if same != index:
            return [(LABEL, f"is also the label of rung {same + 1}; give this rung another one")]
        return []

    def _fault(self, table: str, index: int, key: str | None, what: str) -> None:
        self._faults.append((self.lines.of(table, index, key), what))
