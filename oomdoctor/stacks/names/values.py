"""Readers and writers of one value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from re import _parser  # type: ignore[attr-defined]  # no public parser of expressions exists
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.optimizers import optimizer_named
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, settings_data, words_of
from oomdoctor.stacks.partial_config import PartialConfig, only

AUTO = "auto"


def flag(value: object) -> bool:
    """A switch, as YAML and command lines write it."""
    switch = word(value)
    if switch in ("true", "yes", "1", "on"):
        return True
    if switch in ("false", "no", "0", "off", "none", "null"):
        return False
    raise ValueError(f"must be true or false, not {value!r}")


def integer(value: object) -> int:
    """A whole number; YAML reads 1e3 as text."""
    number = None
    if not isinstance(value, bool):
        with suppress(ValueError):
            number = decimal(value)
    if number is None or number != int(number):
        raise ValueError(f"must be a whole number, not {value!r}")
    return int(number)


def decimal(value: object) -> float:
    """A number; YAML reads 1e-5 as text."""
    try:
        return float(value if isinstance(value, int | float) else str(value))
    except ValueError:
        raise ValueError(f"must be a number, not {value!r}") from None


def names_in(value: object) -> list[str]:
    """Names: a list, or text with commas between."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    if value:
        raise ValueError(f"must be a list of names, not {value!r}")
    return []


def dtype(value: object) -> str:
    """A dtype that a model can be trained in, or auto."""
    text = word(value).removeprefix("torch.")
    short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "half": "float16"}
    text = short.get(text, text)
    if text not in ("auto", "bfloat16", "float16", "float32"):
        raise NotTakenError(f"oomdoctor has no weights in {value}")
    return text


def word(value: object) -> str:
    """A word of a setting, in any case."""
    return str(value).strip().lower()


def is_auto(value: object) -> bool:
    """Whether a value is filled in from another file."""
    return isinstance(value, str) and word(value) == AUTO


def nothing(_: object) -> PartialConfig:
    """Reads a setting that decides nothing."""
    return {}


def names(key: str) -> Read:
    """Reads names: a list, or text with commas between."""
    return lambda value: only(key, tuple(names_in(value)))


def whole(key: str) -> Read:
    """Reads a whole number. null is the same as no line, and auto is said by another file."""
    return lambda value: {} if value is None or is_auto(value) else only(key, integer(value))


def given(key: str, convert: Callable[[object], object]) -> Read:
    """Reads a value as `convert` takes it. null is the same as no line."""
    return lambda value: {} if value is None else only(key, convert(value))


def switched(key: str, *, auto: bool = False) -> Read:
    """Reads a switch. null is the same as no line, and so is `auto` where a program has it."""
    return lambda value: (
        {} if value is None or (auto and is_auto(value)) else only(key, flag(value))
    )


def flagged(key: str) -> Read:
    """Reads a switch that null turns off."""
    return lambda value: only(key, flag(value))


def text(key: str) -> Read:
    """Reads text; anything else says nothing."""
    return lambda value: only(key, value) if isinstance(value, str) and value.strip() else {}


def file(key: str) -> Read:
    """Reads the name of a file of another program, which is read beside this one."""
    return lambda value: only(key, str(value)) if value else {}


def if_on(on: PartialConfig, off: PartialConfig) -> Read:
    """Reads a switch by what it says. null is the same as no line."""
    return lambda value: {} if value is None else on if flag(value) else off


def among(setting: str, null: PartialConfig | None = None, otherwise: Read | None = None) -> Read:
    """Reads one of the words of a setting (`words_of`). `null` is what an empty value says.

    Another word says what `otherwise` reads, or nothing. A text instead of a meaning, or `refused`
    for all other words, is the reason why a rung has no such setting.
    """
    meanings: dict[str, PartialConfig | str] = words_of(setting)
    reason: str | None = settings_data()["refused"].get(setting)

    def read(value: object) -> PartialConfig:
        if value is None and null is not None:
            return null
        meaning = meanings.get(word(value), reason)
        if isinstance(meaning, str):
            raise NotTakenError(meaning.format(value))
        if meaning is None:
            return {} if otherwise is None else otherwise(value)
        return meaning

    return read


def steps(config: TrainConfig) -> object:
    """The gradient accumulation steps of a rung."""
    return config.accumulation_steps()


def words(name: str, key: str, meanings: Mapping[str, str], *aliases: str) -> Row:
    """A row that says a key in other words: word of the program -> value of the key.

    The first word of a value is the one that is written.
    """
    spoken: dict[str, object] = {meanings[text]: text for text in [*meanings][::-1]}

    def read(value: object) -> PartialConfig:
        for text in (value, word(value)):
            if isinstance(text, str) and text in meanings:
                return only(key, meanings[text])
        raise NotTakenError(f"oomdoctor has no {key.replace('_', ' ')} {value!r}")

    def write(config: TrainConfig) -> object:
        return spoken.get(getattr(config, key), LEFT_OUT)

    return Row(name, (key,), read, write, aliases)


def only_if(row: Row, holds: Callable[[TrainConfig], bool]) -> Row:
    """The row, written only for rungs of which `holds` is true."""
    write = row.write
    assert write is not None
    return replace(row, write=lambda config: write(config) if holds(config) else LEFT_OUT)


def optimizer(value: object) -> str:
    """The name of an optimizer as rungs have it, from transformers' name or another spelling."""
    row = optimizer_named(word(getattr(value, "value", value)).rpartition(".")[2])
    if row is None:
        raise NotTakenError(f"oomdoctor has no optimizer {value}")
    return row.name


def optimizer_among(setting: str) -> Read:
    """Reads an optimizer by a program's own words, or by another name of it."""
    meanings = words_of(setting)
    return lambda value: {"optimizer": meanings.get(word(value)) or optimizer(value)}


def targets(value: object) -> PartialConfig:
    """The modules that get adapters: a word, a list, or names with commas between."""
    modules = names_in(value)
    if not modules:
        return {}
    if len(modules) == 1 and modules[0].lower() in ("all-linear", "all"):
        return {"lora_targets": "all-linear"}
    if any(re.search(r"[\\*^$()|]", module) for module in modules):
        return _pattern(modules)
    return {"lora_targets": tuple(modules)}


def _pattern(patterns: list[str]) -> PartialConfig:
    """The names that patterns stand for, in all layers."""
    parts = [part for pattern in patterns if (part := names_of(pattern)) is not None]
    if len(parts) < len(patterns):
        raise NotTakenError("oomdoctor cannot use this pattern as target modules")
    read: PartialConfig = {"lora_targets": tuple(dict.fromkeys(chain.from_iterable(parts)))}
    return read | {"vision": "frozen"} if all(map(of_language, patterns)) else read


def target_words(config: TrainConfig) -> str | list[str]:
    """The modules that get adapters, as peft takes them."""
    if config.lora_targets == "attention":  # its projections in most decoders
        return ["q_proj", "k_proj", "v_proj", "o_proj"]
    if isinstance(config.lora_targets, str):
        return config.lora_targets
    return list(config.lora_targets)


_MOST = 64
_WORDS_OF_LANGUAGE = ("language_model", "text_model")


def names_of(pattern: str) -> tuple[str, ...] | None:
    """The names behind the last dot, in their order; None if the end of the pattern is open."""
    try:
        tails = list(dict.fromkeys(_tails([""], _parser.parse(pattern))))
    except (re.error, OverflowError, RecursionError, ValueError):
        return None
    ends = [tail.rpartition(".")[2] for tail in tails]
    if not ends or any(re.fullmatch(r"[^\W_]\w*", name) is None for name in ends):
        return None
    return tuple(dict.fromkeys(ends))


def of_language(pattern: str) -> bool:
    """Whether a pattern is for the language model alone, not for the vision encoder beside it."""
    named = any(part in pattern for part in _WORDS_OF_LANGUAGE)
    return named and not re.search(r"vis(ion|ual)", pattern)


def _tails(heads: list[str], tokens: Iterable[tuple[Any, Any]]) -> list[str]:
    """What follows each head; anything but letters counts as a dot, and only the end is kept."""
    for operator, argument in tokens:
        parts = _parts(str(operator), argument)
        if parts is None:
            continue
        heads = [(head + part).rpartition(".")[2] if "." in part else head + part
                 for head in heads for part in parts]  # fmt: skip
        heads = list(dict.fromkeys(heads))
        if len(heads) > _MOST:
            raise ValueError("too many names")
    return heads


def _parts(operator: str, argument: Any) -> list[str] | None:
    """The texts that a token stands for; None for one that matches no text."""
    if operator == "LITERAL":
        return [chr(argument)]
    if operator in ("SUBPATTERN", "ATOMIC_GROUP"):
        return _tails([""], argument[-1] if operator == "SUBPATTERN" else argument)
    if operator == "BRANCH":
        return [tail for branch in argument[1] for tail in _tails([""], branch)]
    if operator == "IN" and all(str(kind) == "LITERAL" for kind, _ in argument):
        return [chr(code) for _, code in argument]
    if operator == "MAX_REPEAT" and argument[:2] == (0, 1):  # (...)?
        return ["", *_tails([""], argument[2])]
    if operator in ("AT", "ASSERT", "ASSERT_NOT"):
        return None
    return ["."]
