"""Reads the values of settings. A reader returns None for a value that says nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from oomdoctor.records.facts.architectures import ROLES, ROLES_OF
from oomdoctor.records.facts.optimizers import optimizer_named

Reader = Callable[[Any], Any]


def integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip()):
        value = int(value)
    # A model_max_length of 1e30 means "no limit".
    return value if isinstance(value, int) and 0 < value < 10**8 else None


def count(value: Any) -> int | None:
    return 0 if value in (0, "0") and not isinstance(value, bool) else integer(value)


def flag(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def negated(value: Any) -> bool | None:
    on = flag(value)
    return None if on is None else not on


def if_on(word: str) -> Reader:
    """Reads a switch that means `word` if it is on, and nothing if it is off."""
    return lambda value: word if flag(value) else None


def one_of(words: Mapping[str, str]) -> Reader:
    return lambda value: words.get(str(value).strip().lower().removeprefix("torch."))


def text(value: Any) -> str | None:
    if isinstance(value, str) and value.strip() and value.strip().lower() not in ("auto", "none"):
        return value.strip()
    return None


def optimizer(value: Any) -> str | None:
    name = text(value)
    if name is None:
        return None
    word = name.rpartition(".")[2].lower()
    row = optimizer_named(word)
    return word if row is None else row.name


def quantization_of_bits(value: Any) -> str | None:
    return {"4": "nf4", "8": "int8"}.get(str(value).strip())


def qlora_of_bits(value: Any) -> str | None:
    return "qlora" if quantization_of_bits(value) else None


def method(value: Any) -> str | None:
    word = str(value).strip().lower()
    return {"dora": "lora", "freeze": "full", "peft": "lora"}.get(
        word, word if word in ("full", "lora", "qlora") else None
    )


def lora_if_rank(value: Any) -> str | None:
    return "lora" if integer(value) else None


def stage_in_name(value: Any) -> int | None:
    """The ZeRO stage in the name of a DeepSpeed file such as `ds_z3_config.json`."""
    found = re.search(r"z(?:ero)?[-_]?(?:stage)?[-_]?([0123])", str(value).lower())
    return int(found[1]) if found else None


def fsdp(value: Any) -> bool | None:
    if isinstance(value, list | tuple):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() not in ("", "false", "no"):
        return True
    return flag(value)


def offloads_to(value: Any) -> bool | None:
    device = str(value).strip().lower()
    return True if device in ("cpu", "nvme") else False if device == "none" else None


def contains(word: str) -> Reader:
    return lambda value: True if word in str(value).lower() else None


def roles(value: Any) -> tuple[str, ...] | None:
    """The roles of the linear layers that have adapters, from their names or "all-linear"."""
    names = re.findall(r"[\w-]+", value) if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return None
    if any(str(name) in ("all", "all-linear") for name in names):
        return ROLES
    found = {role for name in names for role in ROLES_OF.get(str(name).rpartition(".")[2], ())}
    return tuple(role for role in ROLES if role in found) or None


def all_roles_if_on(value: Any) -> tuple[str, ...] | None:
    return ROLES if flag(value) else None
