"""What a recorded step holds besides its states."""

from __future__ import annotations

from layout_make import layout

from oomdoctor.analysis.memory.zero.setting import Beside
from oomdoctor.analysis.simulator.zero import beside_of


def test_states_do_not_count_and_the_rest_follows_the_gradients():
    kept = {"temporary": 7}
    backward = (
        (10, {"temporary": 7, "activations": 140, "gradients": 20}),
        (25, {"temporary": 7, "activations": 140}),
        (25, {"temporary": 7, "activations": 100}),
    )
    expected = Beside({"temporary": 67, "activations": 100}, backward, kept)
    assert beside_of(layout(), 2) == expected


def test_the_last_step_counts():
    assert beside_of(layout(3), 2) == beside_of(layout(), 2)
