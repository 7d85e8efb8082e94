"""Score `explain` against texts whose truth is known.

    python scripts/evaluation/score_explain.py [PATH ...] [--misses] [--markdown]

A PATH is a file or a folder: TOML as in `scripts/evaluation/failures` (the default), or JSON with
the truth beside the text, or JSON with a `truth` of what a message says. The first two are about
the answer too (`explained/judge.py` says how), the last about reading (`explained/reading.py`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from explained.judge import answers
from explained.reading import compare
from explained.table import markdown_lines, miss_lines, rows, text_lines
from explained.texts import FAILURES, texts_of


def main() -> None:
    """Print the table of scores and, when asked for, each miss."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", type=Path, nargs="*", default=[FAILURES])
    parser.add_argument("--misses", action="store_true", help="list every miss")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    asked = parser.parse_args()
    texts = [text for path in asked.path for text in texts_of(path)]
    if texts:
        judged = [(text, answers(text)) for text in texts]
        print(*(markdown_lines if asked.markdown else text_lines)(rows(judged)), sep="\n")
        if asked.misses:
            print(*miss_lines(judged), sep="\n")
    examples = [example for path in asked.path for example in _read_examples(path)]
    if examples:
        _print_reading(examples, misses=asked.misses)


def _read_examples(path: Path) -> Iterator[tuple[str, dict]]:
    """The name and the contents of each JSON file with a `truth`."""
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        if file.suffix == ".json":
            example = json.loads(file.read_text(encoding="utf-8"))
            if "truth" in example:
                yield file.stem, example


def _print_reading(examples: list[tuple[str, dict]], *, misses: bool) -> None:
    """The share of each field that was read right and, with `misses`, what was not."""
    scores: dict[str, list[int]] = {}
    missed: list[str] = []
    for name, example in examples:
        for field, said, true in compare(example):
            score = scores.setdefault(field, [0, 0])
            score[0] += said == true
            score[1] += 1
            if said != true:
                title = example.get("title") or example["source"]
                missed.append(f"{name}  {field}: said {said}, is {true}  ({title})")
    print(f"{'field':<28}{'right':>6}{'of':>6}{'share':>9}")
    for field, (right, count) in scores.items():
        print(f"{field:<28}{right:>6}{count:>6}{right / count:>8.1%}")
    if misses:
        print(*missed, sep="\n")


if __name__ == "__main__":
    main()
