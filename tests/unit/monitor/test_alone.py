"""Which processes end at once where one rank stands for all."""

from __future__ import annotations

import sys
import types

import pytest

from oomdoctor.emulator.alone import ANSWERS, is_another_rank


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


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("127.0.0.1", 1, 8, True), {}),  # torch 2.4 gives the number of ranks by its place
        (("127.0.0.1", 1), {"world_size": 8, "is_master": True}),
    ],
)
def test_the_store_waits_for_one_rank(monkeypatch, given, named):
    asked = []

    def store(host, port, world_size=None, is_master=False):
        asked.append((host, port, world_size, is_master))

    module = types.SimpleNamespace(TCPStore=store)
    monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", module)
    ANSWERS["torch.distributed.rendezvous"]()
    module.TCPStore(*given, **named)
    assert asked == [("127.0.0.1", 1, 1, True)]
