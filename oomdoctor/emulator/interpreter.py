"""The interpreter that the emulated GPU is for: its torch, and what of it was built for CUDA.

The interpreter is asked once; torch itself is not imported, because a CUDA build without its CUDA
libraries cannot be.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ASK = """
import importlib.util, json, platform, site, sys, sysconfig
spec = importlib.util.find_spec("torch")
found = list(spec.submodule_search_locations or []) if spec else []
print(json.dumps({
    "torch": found[0] if found else None,
    "packages": [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))],
    "system": platform.system(),
    "machine": platform.machine(),
    "libc": platform.libc_ver()[0],
}))
"""
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`torch` is the package's folder and `cuda` its CUDA version; None without them."""

    python: Path
    torch: Path | None
    torch_version: str | None
    cuda: str | None
    packages: tuple[Path, ...]
    system: str
    machine: str
    libc: str


@cache
def ask(python: Path) -> Interpreter:
    """What an interpreter has.

    Raises:
        OSError: it cannot be run.
        ValueError: it did not answer.
    """
    done = subprocess.run(
        [python, "-c", _ASK],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        lines = done.stderr.strip().splitlines()
        raise ValueError(lines[-1] if lines else "it printed nothing") from error
    folder = Path(answer["torch"]) if answer["torch"] else None
    version, cuda = _versions(folder) if folder else (None, None)
    packages = tuple(map(Path, answer["packages"]))
    system, machine, libc = answer["system"], answer["machine"], answer["libc"]
    return Interpreter(python, folder, version, cuda, packages, system, machine, libc)


def _versions(torch: Path) -> tuple[str | None, str | None]:
    """The versions in torch/version.py: of torch, and of CUDA (None for other builds)."""
    try:
        text = (torch / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None, None
    version, cuda = (
        re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        for name in ("__version__", "cuda")
    )
    return version and version[1], cuda and cuda[1]
