"""The tests of tests/gpu on the emulated GPU, all in one process of the CUDA build.

Those marked `real` are skipped there, each with its reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from oomdoctor.commands.devices.emulated import devices_of, emulated_gpus
from oomdoctor.emulator.enter import entered

ROOT = Path(__file__).parents[2]
_REAL = 4  # tests that need values, clocks or a driver


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_they_pass_as_on_a_gpu(cuda_python: Path, emulator_cache: Path, tmp_path: Path) -> None:
    session, results = tmp_path / "session", tmp_path / "results.xml"
    session.mkdir()
    command = [cuda_python, "-m", "pytest", ROOT / "tests" / "gpu", f"--junitxml={results}"]
    devices = devices_of(emulated_gpus("H100 80GB HBM3"))
    with entered(cuda_python, devices, session, emulator_cache) as emulated:
        ended = subprocess.run(
            [*map(str, command), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
            cwd=ROOT,
            env=os.environ | emulated.variables | {"PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            check=False,
        )
    sys.stdout.write(ended.stdout)
    sys.stderr.write(ended.stderr)
    assert ended.returncode == 0
    (suite,) = ElementTree.parse(results).getroot()
    skipped = [case.get("name") for case in suite if case.find("skipped") is not None]
    assert len(skipped) == _REAL, skipped
    assert int(suite.get("tests", 0)) >= 15
