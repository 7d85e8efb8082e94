"""Ranks are real processes: what they need is known before they start."""

from __future__ import annotations

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.runs.watched.run import refuse_too_many
from oomdoctor.units import GIB


def test_ranks_that_cannot_fit_are_refused() -> None:
    with pytest.raises(OomDoctorError) as raised:
        refuse_too_many(64, 16 * GIB)
    assert raised.value.exit_code == 5
    assert "64 processes with about 38.4 GiB" in raised.value.message
    assert raised.value.hint == "emulate at most 26 GPUs here"


def test_ranks_that_fit_and_a_single_one_are_not() -> None:
    refuse_too_many(8, 16 * GIB)
    refuse_too_many(1, GIB // 4)
