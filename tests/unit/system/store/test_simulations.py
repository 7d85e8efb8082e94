"""What is kept of simulations: whole or not at all, bounded, and never trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import oomdoctor
from oomdoctor.system.environment import cache_dir
from oomdoctor.system.store import simulations

KEY, OTHER, THIRD = ("0" * 64, "1" * 64, "2" * 64)
DATE = "2026-01-02T03:04:05+00:00"


def file_of(key: str) -> Path:
    return cache_dir() / "simulations" / f"{key}.sim"


def test_what_is_written_is_read_with_its_date() -> None:
    assert simulations.read(KEY) is None
    simulations.write(KEY, b"one\ntwo", DATE)
    assert simulations.read(KEY) == simulations.Kept(DATE, b"one\ntwo")
    assert simulations.read(OTHER) is None
    assert [path.name for path in file_of(KEY).parent.iterdir()] == [f"{KEY}.sim"]


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_truncated_file_is_as_if_it_were_not_there(keep: int) -> None:
    simulations.write(KEY, b"a" * 100, DATE)
    file_of(KEY).write_bytes(file_of(KEY).read_bytes()[:keep])
    assert simulations.read(KEY) is None
    simulations.write(KEY, b"b", DATE)
    assert simulations.read(KEY) == simulations.Kept(DATE, b"b")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"[]\n", b"null\nx", b"[" * 900 + b"\n", b"{}\nx", b"\xff\n", b"{" * 999],
)
def test_another_file_is_as_if_it_were_not_there(content: bytes) -> None:
    simulations.write(KEY, b"a", DATE)
    file_of(KEY).write_bytes(content)
    assert simulations.read(KEY) is None


def test_a_file_under_another_key_is_not_read() -> None:
    simulations.write(KEY, b"a", DATE)
    file_of(KEY).rename(file_of(OTHER))
    assert simulations.read(OTHER) is None


def test_those_used_longest_ago_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOMDOCTOR_CACHE_SIZE", "2500B")
    simulations.write(KEY, b"a" * 900, DATE)
    simulations.write(OTHER, b"b" * 900, DATE)
    os.utime(file_of(KEY), (2000, 2000))
    os.utime(file_of(OTHER), (1000, 1000))
    simulations.write(THIRD, b"c" * 900, DATE)
    assert simulations.read(OTHER) is None
    assert simulations.read(KEY) is not None
    assert simulations.read(THIRD) is not None
    os.utime(file_of(KEY), (2000, 2000))
    assert simulations.read(KEY) is not None  # it was used now
    assert file_of(KEY).stat().st_mtime > 3000


def test_what_is_larger_than_the_limit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOMDOCTOR_CACHE_SIZE", "0")
    simulations.write(KEY, b"a", DATE)
    assert simulations.read(KEY) is None


def test_what_a_killed_writer_left_counts_and_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOMDOCTOR_CACHE_SIZE", "2500B")
    simulations.write(KEY, b"a" * 900, DATE)
    left = file_of(KEY).with_name(f".{KEY}.sim.1.abcd.tmp")
    left.write_bytes(b"b" * 900)
    os.utime(left, (1000, 1000))
    simulations.write(OTHER, b"c" * 900, DATE)
    assert sorted(path.name for path in left.parent.iterdir()) == [f"{KEY}.sim", f"{OTHER}.sim"]


def test_a_write_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> Path:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        simulations.write(KEY, b"a", DATE)
    assert list(file_of(KEY).parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_of_the_system() -> None:
    cache_dir().parent.mkdir(parents=True, exist_ok=True)
    cache_dir().write_text("a file")
    with pytest.raises(OSError):
        simulations.write(KEY, b"a", DATE)
    assert simulations.read(KEY) is None


@pytest.mark.parametrize(
    ("file", "shapes"),
    [
        ("analysis/a/b.py", True),
        ("records/a.py", True),
        ("worker/a.py", True),
        ("data/gpus.json", True),
        ("render/a.py", False),
    ],
)
def test_the_code_that_shapes_a_simulation_is_a_part_of_every_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, shapes: bool
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gpus.json").write_text("[]")
    monkeypatch.setattr(oomdoctor, "__file__", str(tmp_path / "__init__.py"))
    source_key = simulations.source_key.__wrapped__  # each call reads the files
    before = source_key()
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")
    assert (source_key() != before) is shapes
    monkeypatch.setattr(oomdoctor, "__version__", "0")
    assert source_key() != before
