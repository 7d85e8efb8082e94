"""Builds a rung from keys and values, and checks each value.

The type hints of `TrainConfig` are the schema. Errors are collected, not raised: each is a pair of
key and sentence, and the caller adds the line number.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from oomdoctor.records.configuration.config import Rung, TrainConfig, steps_in_backward
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.configuration.keys import (
    KEYS,
    dropped_faults,
    label_of,
    settled,
    usual_autocast,
)
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.dtypes import TRAINED_NAMES
from oomdoctor.records.facts.optimizers import RECIPE_NAMES, optimizer_named

KeyFault: TypeAlias = tuple[str, str]

LABEL = "label"
# Targets that exist in every architecture: peft's own word, and one that the worker resolves.
TARGET_WORDS = ("all-linear", "attention")
NO_NAMES = "none"  # an empty list, as --rung spells it
_TYPES = frozenset({"weights_dtype", "autocast_dtype"})
_LONGEST_LABEL = 60
_MOST = 3  # words to suggest


@cache
def config_keys() -> dict[str, Any]:
    """The keys of a rung with their type hints; `label` is not among them."""
    return dict(get_type_hints(TrainConfig))


def read_values(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[KeyFault]]:
    """The valid values of a table, converted for `TrainConfig`, and the errors in the others."""
    good: dict[str, Any] = {}
    faults: list[KeyFault] = []
    for key, value in table.items():
        fault = _key_fault(key) or _value_fault(key, value)
        if fault:
            faults.append((key, fault))
        else:
            good[key] = _converted(key, value)
    return good, faults


def read_words(words: Mapping[str, str]) -> dict[str, Any]:
    """Words from the command line, converted to the type of their key; others stay words."""
    return {key: _from_word(config_keys().get(key), word) for key, word in words.items()}


def build_rung(
    values: Mapping[str, Any],
    *,
    sequence_length: int | None = None,
    effective_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    gpus: int | None = None,
    routing: str | None = None,
    typed: bool = False,
    named: Iterable[str] = (),
) -> tuple[Rung, list[KeyFault]]:
    """A rung from valid values, and the contradictions in it. The values override the sizes.

    If the values name no type, the rung's 16-bit type follows the card. A `typed` rung has the
    mixed precision that ladders train its method with, unless it names autocast or weights of
    another type. On several GPUs, a rung that names no sharding is `ddp`: that is what a launcher
    makes of it. Values that mean nothing beside the others are dropped; those of keys that are
    `named` for this rung alone are errors. Without the number of GPUs, what only several have is
    none.
    """
    asked = {"sequence_length": sequence_length, "effective_batch_size": effective_batch_size}
    sizes: dict[str, Any] = {key: size for key, size in asked.items() if size is not None}
    given = {} if routing is None else {"routing": routing}
    merged = sizes | given | {key: value for key, value in values.items() if key != LABEL}
    spread = _spread(values, gpus)
    if steps_in_backward(TrainConfig(**merged | spread)):
        merged |= _one_micro_batch(values, merged | spread, micro_batch_size)
    elif micro_batch_size is not None and merged.get("micro_batch_size", AUTO) == AUTO:
        merged["micro_batch_size"] = micro_batch_size
    if merged.get("method") == "qlora":
        merged.setdefault("quantization", "nf4")
    follows = _TYPES.isdisjoint(values)
    plain = TrainConfig(**merged)
    usual = "autocast_dtype" not in values and plain.weights_dtype == TrainConfig().weights_dtype
    if typed and usual:
        merged["autocast_dtype"] = usual_autocast(plain.method, plain.objective)
    config = TrainConfig(**merged | spread)
    label = values.get(LABEL)
    if label and "sharding" in spread:
        label += f"+{config.sharding}x{config.world_size}"
    own_sizes = {key: size for key, size in sizes.items() if key in values}
    label = label or label_of(config, replace(config, **own_sizes))
    kept = [key for key in named if key != LABEL and (gpus or KEYS[key].group != "GPUs")]
    faults = config_faults(config)
    refused = {key for key, _ in faults}
    faults += [fault for fault in dropped_faults(config, kept) if fault[0] not in refused]
    return Rung(label, settled(config), follows), faults


def _one_micro_batch(
    values: Mapping[str, Any], merged: Mapping[str, Any], asked: int | None
) -> dict[str, Any]:
    """The sizes of a rung without accumulation: its whole batch is one micro-batch.

    The size is that of the rung, else the micro-batch size that was `asked` for, else the survey's.
    """
    if values.get("micro_batch_size", AUTO) != AUTO:
        return {}
    if asked is not None and "effective_batch_size" not in values:
        return {"micro_batch_size": asked, "effective_batch_size": asked}
    whole = merged.get("effective_batch_size", TrainConfig().effective_batch_size)
    return {"micro_batch_size": whole}


def is_between_nodes(config: TrainConfig) -> bool:
    """Whether a rung needs several machines, and its GPUs are not several whole ones."""
    world, node = config.world_size, config.gpus_per_node
    return config.sharding == "hybrid" and (world <= node or world % max(1, node) != 0)


def _spread(values: Mapping[str, Any], gpus: int | None) -> dict[str, Any]:
    """The keys that the number of GPUs sets. Without one, `hybrid` gets a size to be checked at."""
    if "world_size" in values:
        return {}
    sharding = values.get("sharding")
    if gpus is None:
        nodes = 2 * max(1, values.get("gpus_per_node", TrainConfig().gpus_per_node))
        if sharding != "hybrid":
            return {}
        return {"world_size": nodes, "effective_batch_size": nodes}
    if gpus == 1 or sharding == "none":
        return {}
    return {"world_size": gpus} | ({} if sharding else {"sharding": "ddp"})


def _key_fault(key: str) -> str | None:
    if key == LABEL or key in config_keys():
        return None
    others = {row.name: row.names for row in KEYS.values()}
    return f"is not a key{nearest(key, [*config_keys(), LABEL], others)}"


def _value_fault(key: str, value: Any) -> str | None:
    if key == LABEL:
        if not isinstance(value, str) or not value.isprintable() or not value.strip():
            return f"must be one line of text, not {_shown(value)}"
        long = len(value) > _LONGEST_LABEL
        return f"must have at most {_LONGEST_LABEL} characters" if long else None
    if key == "optimizer":
        if value in RECIPE_NAMES:
            return None
        near = nearest_value(key, value, RECIPE_NAMES) if isinstance(value, str) else ""
        choices = near or f"; known: {', '.join(RECIPE_NAMES)}"
        return f"{_shown(value)} is not an optimizer{choices}"
    listed = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    if listed and key in ("modules_to_save", "lora_targets", "lora_target_parameters"):
        return None
    if key == "modules_to_save":
        return f"must be a list of module names such as embed_tokens, not {_shown(value)}"
    if key == "lora_target_parameters":
        example = "mlp.experts.gate_up_proj"
        return f"must be a list of parameter names such as {example}, not {_shown(value)}"
    if key == "lora_targets":
        if value in TARGET_WORDS:
            return None
        words = ", ".join(f'"{word}"' for word in TARGET_WORDS)
        return f"must be {words} or a list of module names, not {_shown(value)}"
    hint = config_keys()[key]
    if _accepts(hint, value):
        return None
    word = str(value).lower() if isinstance(value, str | bool | int) else ""
    if key in KEYS and word in KEYS[key].refused:
        return f"{_shown(value)} is not supported: {KEYS[key].refused[word]}"
    near = nearest_value(key, word, map(str, _literals(hint))) if word else ""
    return f"must be {_wanted(hint)}, not {_shown(value)}{near}"


def _accepts(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if get_args(hint):
        return any(_accepts(arg, value) for arg in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _literals(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(value for arg in get_args(hint) for value in _literals(arg))


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        *most, last = (_shown(value) for value in get_args(hint))
        return f"{', '.join(most)} or {last}" if most else last
    if get_args(hint):
        return " or ".join(_wanted(arg) for arg in get_args(hint))
    return {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[hint]


def _converted(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if config_keys().get(key) is float:
        return float(value)
    return value


def _from_word(hint: Any, word: str) -> Any:
    kinds = {hint, *get_args(hint)}
    if bool in kinds and word in ("true", "false"):
        return word == "true"
    numbers = any(type(kind) is int for kind in kinds)
    if (numbers or kinds & {int, float}) and re.fullmatch(r"[+-]?[0-9]{1,18}", word):
        return int(word)
    if float in kinds and re.fullmatch(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?", word):
        try:
            return float(word)
        except ValueError:
            return word
    if hint == tuple[str, ...] and word == NO_NAMES:
        return []
    if any(get_origin(kind) is tuple for kind in kinds) and word not in TARGET_WORDS:
        return [name.strip() for name in word.split("+")]
    return word


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(
    word: str,
    choices: Iterable[str],
    others: Mapping[str, tuple[str, ...]] | None = None,
    alike: int = 1,
) -> str:
    """` (did you mean X?)`, or nothing if no known word is similar.

    The order of `choices` is kept among words that contain the typed one, so the most usual comes
    first. `others` are other names of known words. Of words that are only spelled alike, at
    most `alike` are named.
    """
    typed, names = word.strip().lower(), list(choices)
    meant = [name for name, spelled in (others or {}).items() if typed in spelled]
    inside = [name for name in names if typed and typed in name.lower()]
    close = difflib.get_close_matches(typed, names, alike or 1, 0.6)
    similar = list(dict.fromkeys([*meant, *(inside or close)]))[:_MOST]
    if not similar:
        return ""
    *most, last = similar
    return f" (did you mean {', '.join(most)} or {last}?)" if most else f" (did you mean {last}?)"


def nearest_value(key: str, word: str, choices: Iterable[str]) -> str:
    """The suggestion for a mistyped value of a key."""
    if key == "optimizer":
        row = None if any(word.lower() in name for name in RECIPE_NAMES) else optimizer_named(word)
        return nearest(word, choices, {row.name: (word.lower(),)} if row is not None else {}, _MOST)
    others = dict(KEYS[key].values or {})
    if key.endswith("_dtype") and word.lower() in TRAINED_NAMES:
        others[TRAINED_NAMES[word.lower()]] = (word.lower(),)
    if key == "attention":
        spelled = {name: row.spellings for name, row in ATTENTIONS.items() if row.spellings}
        others = {**spelled, **{k: v + spelled.get(k, ()) for k, v in others.items()}}
    return nearest(word, choices, others)
