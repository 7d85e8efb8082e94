"""What stands against emulation, and what to type."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.emulator.interpreter import (
    SMALL_BUILD,
    ask,
    find_compiler,
    lacks_cuda_libraries,
    reason_against,
)
from oomdoctor.errors import ExitCode


@pytest.fixture
def python(tmp_path: Path) -> Any:
    """Makes an interpreter that answers as if it had a torch."""

    def make(
        version: str | None = "2.12.1+cu130", cuda: str | None = "13.0", **answers: Any
    ) -> Path:
        torch = tmp_path / "torch"
        (torch / "lib").mkdir(parents=True, exist_ok=True)
        (torch / "version.py").write_text(
            f"__version__ = {version!r}\ncuda: str | None = {cuda!r}\n"
        )
        if cuda:
            (torch / "lib" / "libtorch_cuda.so").touch()
        usual = {"torch": str(torch) if version else None, "packages": [], "prefix": "/usr"}
        answer = {**usual, "system": "Linux", "machine": "x86_64", "libc": "glibc", **answers}
        path = tmp_path / f"python-{len(list(tmp_path.iterdir()))}"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
        path.chmod(0o755)
        return path

    return make


def test_a_cuda_build_with_a_compiler_will_do(python: Any) -> None:
    assert reason_against(python()) is None
    assert reason_against(python("2.4.1", "12.1")) is None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"version": None}, "has no torch"),
        ({"version": "2.13.0+cpu", "cuda": None}, "is not a CUDA build"),
        ({"version": "2.3.1", "cuda": "12.1"}, "needs torch 2.4 or newer"),
        ({"version": "2.5.1", "cuda": "11.8"}, "needs torch 2.4 or newer, built for CUDA 12 or 13"),
    ],
)
def test_another_torch_will_not(python: Any, facts: dict[str, Any], words: str) -> None:
    reason = reason_against(python(**facts))
    assert reason is not None
    assert words in reason.message
    assert "pip install --no-deps torch==" in (reason.hint or "")
    assert reason.exit_code == ExitCode.MACHINE_UNFIT


def test_another_system_will_not(python: Any) -> None:
    assert "glibc" in reason_against(python(libc="")).message
    assert "Darwin" in reason_against(python(system="Darwin")).message


def test_without_a_compiler_the_hint_names_one(python: Any) -> None:
    reason = reason_against(python(), compiler="no-such-compiler")
    assert reason is not None
    assert "no C compiler" in reason.message
    assert find_compiler("no-such-compiler") is None


def test_an_interpreter_that_does_not_answer_is_named(tmp_path: Path) -> None:
    reason = reason_against(tmp_path / "missing")
    assert reason is not None
    assert "missing" in reason.message


@pytest.mark.parametrize(
    ("there", "lacks"),
    [
        ((), False),
        (("torch/lib/libtorch_cpu.so",), False),
        (("torch/lib/libtorch_cuda.so",), True),
        (("torch/lib/libtorch_cuda.so", "nvidia/cu13/lib/libcudart.so.13"), False),
        (("torch/lib/libtorch_cuda.so", "nvidia/cuda_runtime/lib/libcudart.so.12"), False),
        (("torch/lib/libtorch_cuda.so", "torch/lib/libcudart-9335f6a2.so.12"), False),
        (("torch/lib/libtorch_cuda.so", "../../libcudart.so.12"), False),
    ],
)
def test_cuda_libraries_are_looked_for_where_torch_would(
    there: tuple[str, ...], lacks: bool, tmp_path: Path
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    for name in there:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()
    assert lacks_cuda_libraries(tmp_path / "bin" / "python") is lacks


def test_the_documentation_makes_the_same_small_build() -> None:
    page = (Path(__file__).parents[3] / "docs" / "emulation.md").read_text(encoding="utf-8")
    for line in SMALL_BUILD.replace(" && ", "\n").splitlines():
        assert f"\n{line}\n" in page


def test_torch_may_lie_in_a_folder_that_a_pth_file_names(tmp_path: Path) -> None:
    below = tmp_path / "below" / "lib" / "python3.12" / "site-packages"
    (below / "torch" / "lib").mkdir(parents=True)
    (below / "torch" / "lib" / "libtorch_cuda.so").touch()
    above = tmp_path / "above" / "lib" / "python3.12" / "site-packages"
    above.mkdir(parents=True)
    python = tmp_path / "above" / "bin" / "python"
    assert not lacks_cuda_libraries(python)
    (above / "below.pth").write_text(f"# packages\nimport site\n\n{below}\n")
    assert lacks_cuda_libraries(python)
    (below / "torch" / "lib" / "libcudart.so.13").touch()
    assert not lacks_cuda_libraries(python)


def test_the_folder_that_pip_put_torch_in_has_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --target and PYTHONPATH, triton lies there, too: its functions of CUDA are needed."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ask.cache_clear()
    assert tmp_path not in ask(Path(sys.executable)).packages  # a checkout of torch
    (tmp_path / "torch-2.14.1.dist-info").mkdir()
    ask.cache_clear()
    assert tmp_path in ask(Path(sys.executable)).packages
    ask.cache_clear()
