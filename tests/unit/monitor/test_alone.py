"""Which processes end at once where one rank stands for all."""

from __future__ import annotations

import pytest

from oomdoctor.emulator.alone.ranks import is_another_rank


@pytest.mark.parametrize(
    ("variables", "another"),
    [
        ({}, False),
        ({"LOCAL_RANK": "0", "RANK": "0"}, False),
        ({"LOCAL_RANK": "1", "RANK": "1"}, True),
        ({"LOCAL_RANK": "0", "RANK": "8"}, True),  # the first of another node
        ({"LOCAL_RANK": "3"}, True),  # as Lightning starts them
        ({"LOCAL_RANK": "0"}, False),
        ({"RANK": "1"}, False),  # of a node, for its launcher
        ({"LOCAL_RANK": "-1"}, False),
    ],
)
def test_other_ranks_are_known_by_their_launcher(monkeypatch, variables, another):
    for name in ("LOCAL_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_another_rank() is another
