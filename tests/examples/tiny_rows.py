"""JSON lines for the tiny model of `tiny_text`, in rows of so many tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

_WORDS = 510


def pairs_file(path: Path, rows: int, prompt: int, completion: int) -> Path:
    """Prompts, and two completions of each, which end with a token for the end."""
    dice = random.Random(0)
    lines = [
        {
            "prompt": f"{_words(dice, prompt)} ",
            "chosen": _words(dice, completion - 1),
            "rejected": _words(dice, completion - 1),
        }
        for _ in range(rows)
    ]
    return _written(path, lines)


def texts_file(path: Path, rows: int, tokens: int) -> Path:
    """Documents, with the token for the end that scripts add."""
    dice = random.Random(0)
    return _written(path, [{"text": _words(dice, tokens - 1)} for _ in range(rows)])


def whole_pairs(source: Path, path: Path) -> Path:
    """The same pairs, each completion behind its prompt."""
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    names = ("chosen", "rejected")
    return _written(path, [{name: row["prompt"] + row[name] for name in names} for row in rows])


def _words(dice: random.Random, count: int) -> str:
    return " ".join(f"w{dice.randrange(_WORDS)}" for _ in range(count))


def _written(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def ending(model: Path, ends: int) -> Path:
    """Lets this many of the 512 tokens end what the model of a folder generates.

    The tokenizer's own token for the end is beyond them, so without `ends` nothing does.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    text = (model / "tokenizer.json").read_text()
    beyond = len(tokenizer) + 100
    written = json.loads(text)
    written["model"]["vocab"]["<eos>"] = beyond
    for token in written["added_tokens"]:
        token["id"] = beyond if token["content"] == "<eos>" else token["id"]
    (model / "tokenizer.json").write_text(json.dumps(written))
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((model / name).read_text())
        settings["eos_token_id"] = [beyond, *range(2, 2 + ends)]
        (model / name).write_text(json.dumps(settings))
    return model
