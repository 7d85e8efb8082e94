"""Recipes: ladders as TOML files, built in or written by the user.

A recipe is checked as a whole, and every error is reported with its line and key. `recipes.rungs`
knows which values a key accepts. Whether the machine supports them is decided by the worker.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.configuration.keys import MEANS_NOTHING
from oomdoctor.records.report.user_training import YOURS
from oomdoctor.system.recipes.rungs import (
    LABEL,
    KeyFault,
    build_rung,
    is_between_nodes,
    nearest,
    read_values,
    read_words,
)
from oomdoctor.system.recipes.toml_lines import Lines, find_lines
from oomdoctor.system.regular_files import bytes_of, exists, plain_text
from oomdoctor.system.toml_text import toml_of

NONE = "none"
_TOP_KEYS = ("description", "defaults", "rung")
_CHECKOUT = Path(__file__).parents[3]
_SUFFIX = ".toml"
_LARGEST = 1 << 20  # bytes; far above any recipe


class Sizes(TypedDict, total=False):
    """What the command line sets for every rung; None, or nothing, where it sets nothing.

    `gpus` is the world size of rungs that fix none; None where no command line is known.
    """

    sequence_length: int | None
    effective_batch_size: int | None
    micro_batch_size: int | None
    gpus: int | None
    routing: str | None


def recipe_names() -> tuple[str, ...]:
    """The built-in recipes, the default one first."""
    files = (file.name for file in _folder().iterdir())
    names = (name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX))
    return tuple(sorted(names, key=lambda name: (name != "default", name)))


def recipe_text(name: str) -> str:
    """The text of a built-in recipe, comments included.

    Raises:
        OomDoctorError: there is no built-in recipe with that name (exit 2).
    """
    if name not in recipe_names():
        raise _unknown(name)
    return (_folder() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")


def load_recipe(name_or_path: str, **sizes: Unpack[Sizes]) -> Recipe:
    """A recipe by name or by file; "none" has no rungs.

    `sizes` fills in the sequence length, the effective batch size and the number of GPUs if the
    recipe sets none, and the micro-batch size if the recipe says "auto". A built-in recipe leaves
    out what does not work on several GPUs: see `left_out`.

    Raises:
        OomDoctorError: there is no such recipe, or it has errors; all are listed (exit 2).
    """
    if name_or_path == NONE:
        return Recipe(NONE, "only the configurations of the command line", (), "command line")
    built_in = name_or_path in recipe_names()
    own = Path(name_or_path).expanduser()
    if not built_in and not exists(own):
        raise _unknown(name_or_path)
    path = _folder() / f"{name_or_path}{_SUFFIX}" if built_in else own
    source = "built-in" if built_in else name_or_path
    description, rungs, faults, _ = _read(path, sizes, built_in=built_in)
    if faults:
        count = "an error" if len(faults) == 1 else f"{len(faults)} errors"
        raise usage_error(
            "bad_recipe",
            "\n".join([f"the recipe {name_or_path} has {count}:", *faults]),
            "see an example: oomdoctor recipes show default",
        )
    if built_in:
        rungs = tuple(replace(rung, follows_card=True) for rung in rungs)
    return Recipe(Path(path.name).stem, description, rungs, source)


def left_out(recipe: Recipe, **sizes: Unpack[Sizes]) -> tuple[str, ...]:
    """The labels of a built-in recipe's configurations that do not work on so many GPUs."""
    if recipe.source != "built-in" or (sizes.get("gpus") or 1) == 1:
        return ()
    return _read(_folder() / f"{recipe.name}{_SUFFIX}", sizes, built_in=True).left_out


def check_recipe(path: Path) -> tuple[str, ...]:
    """The errors in a recipe, as lines `FILE:LINE: what`; empty if there are none."""
    return tuple(_read(path, {}).errors)


def parse_rung(text: str, yours: TrainConfig | None = None, **sizes: Unpack[Sizes]) -> Rung:
    """A rung from `key=value,key=value`, such as `method=lora,lora_rank=64,micro_batch_size=4`.

    Join several LoRA targets with a plus: `lora_targets=q_proj+v_proj`. After `yours` come only the
    keys that differ from the rung of --from. A rung that names no type is trained with the mixed
    precision that ladders have for its method.

    Raises:
        OomDoctorError: the text has errors; all are listed (exit 2).
    """
    words: dict[str, str] = {}
    faults: list[KeyFault] = []
    parts = text.split(",")
    base: dict[str, Any] = {}
    if parts[0].strip() == YOURS and len(parts) > 1:
        del parts[0]
        if yours is None:
            faults.append((YOURS, "is the configuration of --from, which is not given"))
        else:
            base = asdict(yours)
    for part in parts:
        key, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not word:
            faults.append((key or "key", f"write key=value, not {part.strip()!r}"))
        elif key in words:
            faults.append((key, "is set twice"))
        else:
            words[key] = word
    values, value_faults = read_values(read_words(words))
    faults += value_faults
    if not faults:
        rung, faults = build_rung(base | values, **sizes, typed=True, named=values)
        if not faults:
            return rung
    shown = text if len(text) <= 200 else text[:197] + "..."
    lines = [f"{key}: {what}" for key, what in faults]
    raise usage_error(
        "bad_rung",
        f"--rung {shown!r}: {lines[0]}"
        if len(lines) == 1
        else "\n".join([f"--rung {shown!r} has {len(lines)} errors:", *lines]),
        _without(text, faults)
        or "write it like --rung method=lora,lora_rank=64; for the keys run "
        "`oomdoctor recipes show default`",
    )


def _without(text: str, faults: Sequence[KeyFault]) -> str:
    """The rung to type instead, if all that is wrong are keys that mean nothing; empty if not."""
    lost = [key for key, what in faults if what.startswith(MEANS_NOTHING)]
    kept = [part for part in text.split(",") if part.partition("=")[0].strip() not in lost]
    alone = len(lost) == len(faults) and kept
    return f"leave it out: --rung {shlex.quote(','.join(kept))}" if alone else ""


def _folder() -> Traversable:
    """The folder of the recipes: inside the package if it was built, beside it in a checkout."""
    inside = resources.files("oomdoctor") / "_recipes"
    return inside if inside.is_dir() else _CHECKOUT / "recipes"


def _unknown(name: str) -> OomDoctorError:
    names = [*recipe_names(), NONE]
    return usage_error(
        "unknown_recipe",
        f"no recipe or file is named {name}{nearest(name, names)}",
        f"use one of {', '.join(names)}; or edit a copy: oomdoctor recipes copy default mine.toml",
    )


class _Read(NamedTuple):
    """What a file says. The rungs are valid only if there are no errors."""

    description: str
    rungs: tuple[Rung, ...]
    errors: Sequence[str]
    left_out: tuple[str, ...] = ()


def _read(path: Path | Traversable, sizes: Sizes, *, built_in: bool = False) -> _Read:
    try:
        content = bytes_of(path, _LARGEST) if isinstance(path, Path) else path.read_bytes()
        text = plain_text(content)
        document = toml_of(text)
    except OSError as error:
        return _Read("", (), [f"cannot read {path}: {error.strerror}"])
    except UnicodeDecodeError:
        return _Read("", (), [f"{path}: not UTF-8 text"])
    except (ValueError, RecursionError) as error:
        return _Read("", (), [_syntax_fault(path, text, error)])
    reader = _Reader(path, find_lines(text), sizes, built_in=built_in)
    reader.read(document)
    rungs, left_out = tuple(reader.rungs), tuple(reader.left_out)
    return _Read(str(document.get("description", "")), rungs, reader.errors(), left_out)


def _syntax_fault(path: Path | Traversable, text: str, error: Exception) -> str:
    message = str(error)
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", message)
    line = int(place[1]) if place and place[1] else text.count("\n") + 1 if place else 1
    what = message.replace(place[0], "") if place else message
    column = f" in column {place[2]}" if place and place[2] else ""
    return f"{path}:{line}: not TOML: {what[:1].lower()}{what[1:]}{column}"


class _Reader:
    """Collects the rungs of one file, and every error with its line."""

    def __init__(
        self, path: Path | Traversable, lines: Lines, sizes: Sizes, *, built_in: bool
    ) -> None:
        self.path, self.lines, self.sizes, self.built_in = path, lines, sizes, built_in
        self.rungs: list[Rung] = []
        self.left_out: list[str] = []
        self._faults: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}
        self._configs: dict[str, int] = {}

    def errors(self) -> list[str]:
        """The errors as lines of text, in file order."""
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
            faults.append((LABEL, "must be set in a [[rung]], not in [defaults]"))
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
            if not faults and sound:  # otherwise a contradiction may just follow from an error
                rung, faults = build_rung({**defaults, **own}, **self.sizes, named=own)
                if self.built_in and is_between_nodes(rung.config):
                    continue
                if self.built_in and self._is_for_one(faults):
                    self.left_out.append(rung.label)
                    continue
                label = rung.label
                faults = faults or self._repeated(index, rung)
                self.rungs.append(rung)
            head = f"configuration {index + 1} ({label})" if label else f"configuration {index + 1}"
            for key, what in faults:
                place = ("rung", index)
                if key not in table and key in default_keys:
                    place = ("defaults", 0)
                self._fault(*place, key, f"{head}: {key}: {what}")

    def _is_for_one(self, faults: Sequence[KeyFault]) -> bool:
        """Whether a rung without errors on one GPU has one on several, whatever the sizes are."""
        several = (self.sizes.get("gpus") or 1) > 1
        return several and any(key not in Sizes.__annotations__ for key, _ in faults)

    def _repeated(self, index: int, rung: Rung) -> list[KeyFault]:
        # By rung_key: all micro-batch sizes of a configuration belong to one rung.
        same = self._configs.setdefault(rung.config.rung_key(), index)
        if same != index:
            what = f"repeats configuration {same + 1}, apart from the micro-batch size"
            return [("micro_batch_size", what)]
        same = self._labels.setdefault(rung.label, index)
        if same != index:
            return [(LABEL, f"is taken by configuration {same + 1}; choose another one")]
        return []

    def _fault(self, table: str, index: int, key: str | None, what: str) -> None:
        self._faults.append((self.lines.of(table, index, key), what))
