"""Why the values of small tensors are unknown is told, before and after the stand-ins are built."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.emulator import build, values
from oomdoctor.emulator.interpreter import Interpreter


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    torch = tmp_path / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "lib" / "libtorch_cuda.so").touch()
    return Interpreter(Path("python"), torch, "2.12.1", "13.0", (), "Linux", "x86_64", "glibc")


def test_what_is_missing_is_told_before_the_build(interpreter, tmp_path, monkeypatch):
    assert "C++ headers" in str(build.without_values(interpreter, "cc", tmp_path))
    headers = tmp_path / "torch" / "include" / "ATen"
    headers.mkdir(parents=True)
    (headers / "record_function.h").touch()
    monkeypatch.setattr(values, "find_cpp_compiler", lambda compiler: "c++")
    assert build.without_values(interpreter, "cc", tmp_path) is None
    monkeypatch.setattr(values, "find_cpp_compiler", lambda compiler: None)
    assert build.without_values(interpreter, "cc", tmp_path) == "there is no C++ compiler"


def test_what_failed_is_told_after_the_build(interpreter, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_key", lambda *_: "made")
    monkeypatch.setattr(build, "_is_whole", Path.is_dir)
    (tmp_path / "made").mkdir()
    assert build.without_values(interpreter, "cc", tmp_path) is None
    (tmp_path / "made" / "values-reason").write_text("c++ failed: error")
    assert build.without_values(interpreter, "cc", tmp_path) == "c++ failed: error"
