"""Suggestions for a mistyped key or value of a rung, the most usual first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.dtypes import TRAINED_NAMES
from oomdoctor.records.facts.optimizers import RECIPE_NAMES, optimizer_named
from oomdoctor.records.rung.keys import KEYS

_MOST = 3


def nearest(
    word: str,
    known: Iterable[str],
    others: Mapping[str, tuple[str, ...]] | None = None,
    alike: int = 1,
) -> str:
    """` (did you mean X?)`, or nothing if no known word is similar.

    The order of `known` is kept among words that contain the typed one, so the most usual comes
    first. `others` are other names of known words. Of words that are only spelled alike, at
    most `alike` are named.
    """
    typed, names = word.strip().lower(), list(known)
    meant = [name for name, spelled in (others or {}).items() if typed in spelled]
    inside = [name for name in names if typed and typed in name.lower()]
    close = difflib.get_close_matches(typed, names, alike or 1, 0.6)
    found = list(dict.fromkeys([*meant, *(inside or close)]))[:_MOST]
    if not found:
        return ""
    *most, last = found
    return f" (did you mean {', '.join(most)} or {last}?)" if most else f" (did you mean {last}?)"


def nearest_key(word: str, known: Iterable[str]) -> str:
    """The suggestion for a mistyped key."""
    return nearest(word, known, {key.name: key.names for key in KEYS.values()})


def nearest_value(key: str, word: str, known: Iterable[str]) -> str:
    """The suggestion for a mistyped value of a key."""
    if key == "optimizer":
        row = None if any(word.lower() in name for name in RECIPE_NAMES) else optimizer_named(word)
        return nearest(word, known, {row.name: (word.lower(),)} if row is not None else {}, _MOST)
    others = dict(KEYS[key].values or {})
    if key.endswith("_dtype") and word.lower() in TRAINED_NAMES:
        others[TRAINED_NAMES[word.lower()]] = (word.lower(),)
    if key == "attention":
        spelled = {name: row.spellings for name, row in ATTENTIONS.items() if row.spellings}
        others = {**spelled, **{k: v + spelled.get(k, ()) for k, v in others.items()}}
    return nearest(word, known, others)
