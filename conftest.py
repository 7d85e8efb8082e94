"""Every test runs in a house of its own: home, state and caches in tmp, offline, no colour."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Threads of torch that wait must not spin: beside other work a tiny matrix product would take ten
# times as long. Read once, when torch is loaded, here or in a worker.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_FOREIGN = (
    "SLURM",
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "PYTORCH_",
    "OOMDOCTOR_",
    "FORCE_COLOR",
    "PYTHONUNBUFFERED",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
)


@pytest.fixture(autouse=True)
def isolated(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Path]:
    """The home folder of the test; nothing of the developer's machine shines through."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(_FOREIGN):
            monkeypatch.delenv(name)
    if request.node.get_closest_marker("gpu") is None:
        # A GPU test keeps it: on a shared machine it says which card is ours.
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA GPU where there is none, and say why."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    reason = _no_gpu()
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason or ""))


def _no_gpu() -> str | None:
    # Asked of the driver, not of torch: collecting the tests stays fast and holds no CUDA context.
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
