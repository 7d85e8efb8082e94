"""What tests on the emulated GPU share: an interpreter with a CUDA build of torch.

It is `OOMDOCTOR_CUDA_PYTHON`, or `.venv-cuda` in the repository. Without it these tests are
skipped, except where `OOMDOCTOR_REQUIRE_CUDA_PYTHON=1` says that it has to be there, as in CI.
Unsloth has one of its own: `OOMDOCTOR_UNSLOTH_PYTHON`, or `.venv-unsloth`, in the same way.
Transformer Engine is compiled from source, for minutes and with headers of CUDA. CI does not have
it: its tests run where `OOMDOCTOR_TRANSFORMER_ENGINE_PYTHON` names an interpreter with it.
Every test in this folder has the mark `emulated`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from emulated_bench import Bench
from emulated_run import Watched

ROOT = Path(__file__).parents[2]
# Read before the tests are isolated from the developer's settings.
_GIVEN = os.environ.get("OOMDOCTOR_CUDA_PYTHON")
_GIVEN_UNSLOTH = os.environ.get("OOMDOCTOR_UNSLOTH_PYTHON")
_GIVEN_ENGINE = os.environ.get("OOMDOCTOR_TRANSFORMER_ENGINE_PYTHON")
_REQUIRED = os.environ.get("OOMDOCTOR_REQUIRE_CUDA_PYTHON") == "1"
_REASON = (
    "no interpreter with a CUDA build of torch: scripts/cuda-venv.sh .venv-cuda makes one; or set "
    "OOMDOCTOR_CUDA_PYTHON"
)

_NO_UNSLOTH = (
    "no interpreter with Unsloth: scripts/unsloth-venv.sh .venv-unsloth .venv-cuda makes one; or "
    "set OOMDOCTOR_UNSLOTH_PYTHON"
)


def _interpreter(given: str | None, folder: str) -> Path | None:
    found = Path(given) if given else ROOT / folder / "bin" / "python"
    # Not resolved: the link is what makes it the Python of its environment.
    return found.absolute() if os.access(found, os.X_OK) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.emulated)


@pytest.fixture(scope="session")
def cuda_python() -> Path:
    """The interpreter with a CUDA build of torch."""
    return _required(_interpreter(_GIVEN, ".venv-cuda"), _REASON)


@pytest.fixture(scope="session")
def unsloth_python() -> Path:
    """The interpreter with a CUDA build of torch and Unsloth."""
    return _required(_interpreter(_GIVEN_UNSLOTH, ".venv-unsloth"), _NO_UNSLOTH)


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The interpreter with a CUDA build of torch and Transformer Engine."""
    if _GIVEN_ENGINE is None:
        pytest.skip("OOMDOCTOR_TRANSFORMER_ENGINE_PYTHON is not set")
    return Path(_GIVEN_ENGINE).absolute()


def _required(found: Path | None, reason: str) -> Path:
    if found is None and _REQUIRED:
        pytest.fail(f"OOMDOCTOR_REQUIRE_CUDA_PYTHON is set, but there is {reason}")
    if found is None:
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def emulator_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is built for the emulated GPU, the same for all processes of the tests."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "emulator-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def bench(
    cuda_python: Path, emulator_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    """Runs code on an emulated GPU and returns what it told."""
    return Bench(cuda_python, emulator_cache, tmp_path_factory.mktemp("sessions"))


@pytest.fixture
def watched(tmp_path: Path, cuda_python: Path, emulator_cache: Path) -> Watched:
    """Runs scripts under `oomdoctor run` in a folder of the test."""
    return Watched(tmp_path, cuda_python, emulator_cache)
