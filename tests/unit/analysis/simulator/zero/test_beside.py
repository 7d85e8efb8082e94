"""What a recorded step holds besides its states."""

from __future__ import annotations

from layout_make import layout

from oomdoctor.analysis.memory.zero.setting import Beside
from oomdoctor.analysis.simulator.zero.beside import beside_of


def test_states_do_not_count_and_the_rest_follows_the_gradients():
    expected = Beside(7 + 160, ((10, 167), (25, 147), (25, 107)), kept_bytes=7)
    assert beside_of(layout(), 2) == expected


def test_the_last_step_counts():
    assert beside_of(layout(3), 2) == beside_of(layout(), 2)
