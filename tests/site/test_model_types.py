"""The page about model types is what the script has asked for, and nobody edits it."""

from __future__ import annotations

import json

import pytest
from families import lost_answers, shrunk
from families_page import ANSWERS, PAGE, page


def test_the_page_is_what_was_answered() -> None:
    assert PAGE.read_text() == page(), "run scripts/evaluation/families.py --page"


@pytest.mark.parametrize("file", sorted(ANSWERS.glob("*.json")), ids=lambda file: file.stem)
def test_a_lost_answer_is_told(file: object) -> None:
    kept = json.loads(file.read_text())  # type: ignore[attr-defined]
    assert lost_answers(kept["types"], kept) == []
    refused = {"outcome": "refused", "reason": "for a test"}
    answers = {kind: dict.fromkeys(row, refused) for kind, row in kept["types"].items()}
    had = sum(
        one["outcome"] == "answered" for row in kept["types"].values() for one in row.values()
    )
    assert had and len(lost_answers(answers, kept)) == had


def test_a_config_is_shrunk_in_all_of_its_parts() -> None:
    class Config:
        def to_json_string(self, *, use_diff: bool) -> str:
            assert not use_diff
            part = {"depth": 32, "deep": [0] * 32, "other": [1, 2]}
            return json.dumps({"num_hidden_layers": 3, "vision_config": part})

    assert shrunk(Config()) == {
        "num_hidden_layers": 3,
        "vision_config": {"depth": 4, "deep": [0] * 4, "other": [1, 2]},
    }
