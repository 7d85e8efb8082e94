"""Compiled code from the hub: no simulation asks for it, whatever a library wants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = "def get_kernel(name, version=None): print('asked the hub for', name)\n"
PROGRAM = """
from oomdoctor.worker import host

def preload(**_):
    import kernels  # as bitsandbytes does in backends/cpu/ops.py

    kernels.get_kernel("kernels-community/quantization-bitsandbytes", version=1)

host._preload = preload
host._private_streams = lambda: ([], open("/dev/null", "w"))
host.serve(lambda job, reply: None, isolated={isolated})
"""


@pytest.mark.parametrize("isolated", [True, False])
def test_a_simulation_loads_no_kernel_from_the_hub(tmp_path: Path, isolated: bool) -> None:
    """With `kernels` installed, every plan asked the hub: it downloaded a library and loaded it."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(isolated=isolated)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    asked = "asked the hub for kernels-community" in done.stdout
    assert asked == isolated, done.stderr
    if not isolated:  # bitsandbytes takes any error as "there is none"
        assert "a simulation loads no kernel from the hub" in done.stderr
