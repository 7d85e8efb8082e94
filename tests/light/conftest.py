"""Two light installs, made once: a virtual environment with typer and rich, and oomdoctor.pyz."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "scripts" / "build_pyz.py"
_SEEN = ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "COLUMNS", "NO_COLOR")


@dataclass(frozen=True, slots=True)
class Light:
    """A light install: the words that start it, and its files."""

    words: tuple[str, ...]
    path: Path

    def start(self, *arguments: str, **changed: str) -> subprocess.Popen[str]:
        """Start a command that sees no variable of the tests but these and the folders."""
        kept = {name: os.environ[name] for name in _SEEN if name in os.environ}
        return subprocess.Popen(
            [*self.words, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env={"PATH": "/usr/bin:/bin", **kept, **changed},
        )

    def __call__(self, *arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        process = self.start(*arguments, **changed)
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder with typer, rich and what these need; the first time needs a network."""
    done = subprocess.run(
        [sys.executable, BUILD, "--packages"], capture_output=True, encoding="utf-8"
    )
    if done.returncode:
        pytest.skip(f"the packages of oomdoctor.pyz cannot be downloaded: {done.stderr[-200:]}")
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this project."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", *words, "-w", folder, ROOT], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def bare(packages: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Light:
    """A virtual environment with typer, rich, and the wheel installed without dependencies."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    shutil.copytree(packages, site, dirs_exist_ok=True)
    words = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile"]
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install"]
    subprocess.run([*pip, *words, wheel], check=True)
    return Light((str(folder / "bin" / "oomdoctor"),), folder)


@pytest.fixture(scope="session")
def pyz(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Light:
    """oomdoctor.pyz, run by a Python that sees no package but those of the standard library."""
    path = tmp_path_factory.mktemp("pyz") / "oomdoctor.pyz"
    subprocess.run([sys.executable, BUILD, path], check=True, stdout=subprocess.DEVNULL)
    python = str(Path(sys.executable).resolve())
    return Light((python, "-I", "-S", str(path)), path)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache where oomdoctor.pyz is unpacked once for many tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=["bare", "pyz"])
def light(request: pytest.FixtureRequest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    """Each of the two."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    found: Light = request.getfixturevalue(request.param)
    return found
