"""A process that has simulated can measure: no fake tensor stays in a library's tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from dataclasses import replace
from tiny_models import tiny_job
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.protocol import UnsupportedError

job = tiny_job("dense", method="qlora", quantization="nf4", weights_dtype="bfloat16")
simulate(replace(job, mode="simulate", simulation=SimulationRequest((2,), ())), PhaseFile(None))
try:
    assert measure(replace(job, timing_limit_s=0.1), PhaseFile(None)).losses[0] > 0
except UnsupportedError as error:
    print(error)
"""


@pytest.mark.slow
def test_quantised_weights_after_a_simulation() -> None:
    """In a process of its own: whichever comes first fills the tables."""
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=Path(__file__).parents[2] / "examples",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
