"""Texts of failures with what an expert says about them, as TOML or as JSON.

A TOML file is a class, with a table `[[failure]]` for each text. `first`, `top3` and `bad` name
meanings of `patterns.toml`, whose expressions are what an expert would accept, in any wording. A
JSON file is one text with the expressions in `first_ok`, `top3_must` and `bad`, and its folder is
the class. The truth is written before the tool sees the text.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAILURES = Path(__file__).parents[1] / "failures"
_PATTERNS = "patterns.toml"


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its truth. `numbers` are bytes; `first`, `top3` and `bad` are expressions.

    `phases` are the accepted ones, the best first: `unknown` stands there if the text shows none.
    `meanings` has the words for `first`, `top3` and `bad` in a list of misses.
    """

    name: str
    group: str
    text: str
    is_oom: bool
    resource: str
    phases: tuple[str, ...]
    numbers: Mapping[str, int]
    causes: tuple[str, ...] = ()
    defensible: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    top3: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)


def patterns() -> dict[str, list[str]]:
    """The expressions of each meaning."""
    return tomllib.loads((FAILURES / _PATTERNS).read_text(encoding="utf-8"))


def texts_of(path: Path) -> Iterator[Text]:
    """The texts of a file, or of a folder's files; JSON without a truth beside it is left out."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.suffix == ".toml" and file.name != _PATTERNS:
            rows = tomllib.loads(file.read_text(encoding="utf-8")).get("failure", [])
            yield from (_row(file.stem, row) for row in rows)
        elif file.suffix == ".json":
            example = json.loads(file.read_text(encoding="utf-8"))
            if "first_ok" in example or "is_oom" in example:
                yield _example(file, example)


def _row(group: str, row: Mapping[str, Any]) -> Text:
    known = patterns()
    wanted = {key: row.get(key, []) for key in ("first", "top3", "bad")}
    return Text(
        name=row["name"],
        group=group,
        text=row["text"],
        is_oom=row["is_oom"],
        resource=row["resource"],
        phases=tuple(row["phase"]),
        numbers=row.get("numbers", {}),
        causes=tuple(row.get("cause", ())),
        defensible=tuple(row.get("defensible", ())),
        **{
            key: tuple(one for name in names for one in known[name])
            for key, names in wanted.items()
        },
        meanings={key: ", ".join(names) for key, names in wanted.items()},
    )


def _example(file: Path, example: Mapping[str, Any]) -> Text:
    fields = {"first": "first_ok", "top3": "top3_must", "bad": "bad"}
    wanted = {key: tuple(example.get(name) or ()) for key, name in fields.items()}
    phase = example.get("phase") or "unknown"
    return Text(
        name=f"{file.stem} {example.get('source') or ''}".strip(),
        group=file.parent.name,
        text=example["text"],
        is_oom=example["is_oom"],
        resource=example["resource"],
        phases=(phase, *(example.get("phase_accept") or ())),
        numbers={key: size for key, size in example["numbers"].items() if size is not None},
        causes=tuple(example.get("cause_accept") or ()),
        defensible=tuple(example.get("cause_defensible") or ()),
        **wanted,
        meanings={key: " | ".join(one[:60] for one in some) for key, some in wanted.items()},
    )
