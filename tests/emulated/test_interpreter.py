"""The interpreter of these tests: a CUDA build of torch, without a library of NVIDIA."""

from __future__ import annotations

import subprocess
from pathlib import Path

_LOOK = """
from importlib import metadata
names = [one.metadata["Name"].lower() for one in metadata.distributions()]
print([name for name in names if name.startswith("nvidia") and name != "nvidia-ml-py"])
import pathlib, importlib.util
library = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib"
print((library / "libtorch_cuda.so").is_file())
"""


def test_it_has_a_cuda_build_and_no_library_of_nvidia(cuda_python: Path) -> None:
    ended = subprocess.run([cuda_python, "-c", _LOOK], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["[]", "True"]
