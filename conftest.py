"""Isolates every test: home, state and caches are in tmp, it is offline and has no colour."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# One thread a process: the tests' matrices are tiny and several processes share the cores. torch
# reads this once, when it is loaded, here or in a worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_FOREIGN = (
    "SLURM",
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "PYTORCH_",
    "ACCELERATE_",  # transformers leaves the mixed precision of a training behind
    "OOMDOCTOR_",
    "FORCE_COLOR",
    "PYTHONUNBUFFERED",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
)
# Folders whose tests are long enough to be handed out one by one; elsewhere a file is handed out.
_ONE_BY_ONE = ("tests/worker/", "tests/commands/", "tests/explain/", "scripts/")
# Folders whose tests share an expensive set-up.
_ONE_SETUP = ("tests/slurm/",)
# Files in them whose tests share an expensive set-up, or the GPU.
_TOGETHER = (
    "tests/commands/test_plan.py",
    "tests/worker/test_exported_objectives.py",
    "tests/worker/test_exported_scripts.py",
    "tests/worker/dataset/test_lengths.py",
)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that are not there yet, apart from others: pytest lists those to name the next."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def isolated(
    homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """The home folder of the test. The developer's own settings and caches are out of reach."""
    home = next(homes)
    home.mkdir()
    # Tests of a GPU keep the session of an emulated one.
    kept = () if request.node.get_closest_marker("gpu") is None else ("OOMDOCTOR_EMULATED",)
    for name in list(os.environ):
        if name.startswith(_FOREIGN) and not name.startswith(kept or "-"):
            monkeypatch.delenv(name)
    if request.node.get_closest_marker("gpu") is None:
        # GPU tests keep it: on a shared machine it says which card is ours.
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    for name, folder in (
        ("HOME", home),
        ("XDG_STATE_HOME", home / "state"),
        ("XDG_CACHE_HOME", home / "cache"),
        ("XDG_CONFIG_HOME", home / "config"),
        ("HF_HOME", home / "huggingface"),
    ):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    yield home


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process the next file when it is free; in `_ONE_BY_ONE`, the next test.

    This replaces `--dist loadgroup`, whose groups xdist 3.8 loses under pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            shared = next((folder for folder in _ONE_SETUP if file.startswith(folder)), None)
            if shared is not None:
                return shared
            alone = file.startswith(_ONE_BY_ONE) and file not in _TOGETHER
            return nodeid if alone else file

    return Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the weekly run ask for every row."""
    parser.addoption("--weekly", action="store_true", help="run also the rows marked weekly")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave Python's collector off meanwhile: it finds next to nothing, in a quarter of the time.

    What is left stays, and later collections pass it over.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out weekly rows, and skip tests that need a CUDA GPU or kernels that are not there.

    Several processes start with the slow tests, so that none of these is left for the end.
    """
    if not config.getoption("weekly"):
        weekly = [item for item in items if item.get_closest_marker("weekly")]
        config.hook.pytest_deselected(items=weekly)
        items[:] = [item for item in items if item not in weekly]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    if "OOMDOCTOR_EMULATED" in os.environ:
        for item in marked:
            if (real := item.get_closest_marker("real")) is not None:
                item.add_marker(pytest.mark.skip(reason=f"emulated GPU: {real.args[0]}"))
    reason = _no_gpu()
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason or ""))


def _no_gpu() -> str | None:
    # Ask the driver, not torch: collecting stays fast and holds no CUDA context.
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return "no CUDA GPU: nvidia-ml-py is not installed"
    except pynvml.NVMLError as error:
        return f"no CUDA GPU: {error}"
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    return None if count else "no CUDA GPU: the driver sees none"
