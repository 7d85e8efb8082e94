"""How exported scripts read their data: the functions alone, without the libraries of a script."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.export import export
from oomdoctor.stacks.rung import StackRung


class Words:
    """A tokenizer with a token a word."""

    eos_token_id = 0

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return " ".join(["user", *(message["content"] for message in messages)])


def functions(**values: Any) -> dict[str, Any]:
    """The constants and functions of a script for TRL, which only read files."""
    sizes = {"micro_batch_size": 2, "effective_batch_size": 8, "sequence_length": 8}
    config = TrainConfig(**(sizes | values))
    tree = ast.parse(export(StackRung(config, "a", "some/model"), "trl"))
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.Assign)
        or (isinstance(node, ast.Import | ast.ImportFrom) and _is_standard(node))
    ]
    found: dict[str, Any] = {"PreTrainedTokenizerBase": Words}
    exec(compile(ast.Module(kept, []), "train.py", "exec"), found)
    return found


def _is_standard(node: ast.Import | ast.ImportFrom) -> bool:
    name = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
    return name in ("argparse", "json", "pathlib", "typing")


def written(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    ("names", "text", "words"),
    [
        (("text",), '{"text": 3}', ":1: text must be a text"),
        (("text",), '{"other": "a"}', ":1: text must be a text"),
        (("text",), '{"text": "a"}\n\n{"text"', ":3: not JSON"),
        (("text",), "\n\n", "has no rows"),
        (("chosen", "rejected"), '{"chosen": "a"}', ":1: rejected must be a text or chat messages"),
        (("prompt",), '["a"]', ":1: prompt must be a text or chat messages"),
        (("prompt",), b"\xff\xfe", "is not text in UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    names: tuple[str, ...], text: str | bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    read = functions(**({} if names == ("text",) else {"objective": "dpo"}))["json_lines"]
    with pytest.raises(SystemExit, match=r"train\.jsonl") as caught:
        read(path, *names)
    assert words in str(caught.value)


def test_rows_of_text_are_full(tmp_path: Path) -> None:
    rows = functions()["packed_rows"]
    path = written(tmp_path / "a.jsonl", {"text": "a b c d e"}, {"text": "f g h i j k"})
    assert rows(path, Words()) == [[1, 1, 1, 1, 1, 0, 1, 1]]
    path.write_text(json.dumps({"text": "a b"}))
    with pytest.raises(SystemExit, match="has only 3 tokens: less than one row"):
        rows(path, Words())
    text = tmp_path / "a.txt"
    text.write_text("aa bb cc dd ee ff gg hh")
    assert rows(text, Words()) == [[2] * 8]


def test_long_documents_become_several_for_packing(tmp_path: Path) -> None:
    cut = functions(packing="packed")["cut_documents"]
    path = written(tmp_path / "a.jsonl", {"text": "a " * 9}, {"text": "bb"})
    assert cut(path, Words()) == [[1] * 8, [1, 0], [2, 0]]


def test_prompts_leave_room_for_a_completion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = functions(objective="grpo", completion_length=5)
    chat = [{"role": "user", "content": "a b"}]
    rows = [{"prompt": "a b c", "answer": "1"}, {"prompt": "a b c d"}, {"prompt": chat}]
    assert script["short_prompts"](rows, Words()) == [rows[0], rows[2]]
    assert capsys.readouterr().out == "left out 1 rows: their prompts have over 3 tokens\n"
    with pytest.raises(SystemExit, match="no prompt has at most 3 tokens"):
        script["short_prompts"](rows[1:2], Words())


def test_the_reward_function_only_shows_its_form() -> None:
    script = functions(objective="grpo")
    assert script["reward"](["ab", [{"content": "abc"}]], answer=[1, 2]) == [2.0, 3.0]
    assert "REPLACE THIS" in script["reward"].__doc__
