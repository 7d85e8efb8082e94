"""Ranks are real processes: what they need is known before they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.commands.devices.emulated import emulated_gpus
from oomdoctor.commands.run.run_watched import refuse_too_many
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.errors import OomDoctorError
from oomdoctor.units import GIB


def _request(gpus: str, *, alone: bool = False) -> WatchRequest:
    chosen = emulated_gpus(gpus, alone=alone)
    return WatchRequest(("torchrun", "train.py"), chosen, Path("python"), "steady")


def test_ranks_that_cannot_fit_are_refused() -> None:
    with pytest.raises(OomDoctorError) as raised:
        refuse_too_many(_request("64xH100"), 16 * GIB)
    assert raised.value.exit_code == 5
    assert "64 processes with about 38.4 GiB" in raised.value.message
    line = "oomdoctor run --emulate '64xNVIDIA H100 80GB HBM3' --ranks 1 -- torchrun train.py"
    assert raised.value.hint == f"let one rank stand for all: {line}"


def test_ranks_that_fit_and_a_single_one_are_not() -> None:
    refuse_too_many(_request("8xT4"), 16 * GIB)
    refuse_too_many(_request("T4"), GIB // 4)
    refuse_too_many(_request("64xT4", alone=True), GIB)
