"""The cache of the emulated GPU is checked before it is loaded, and belongs to one user."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oomdoctor.emulator import build, generate
from oomdoctor.emulator.compilers import Compilers
from oomdoctor.emulator.interpreter import Interpreter


class Cache:
    """A cache whose builds are made in no time and counted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder / "cache", 0
        self.packages = folder / "site-packages"
        (self.packages / "torch" / "lib").mkdir(parents=True)
        (self.packages / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"torch")

    def make(self, *args: object) -> None:
        self.count += 1
        out = next(one for one in args if isinstance(one, Path) and one.name == "made")
        (out / "libcuda.so.1").write_bytes(b"library")
        (out / "bin").mkdir()
        (out / "bin" / "nvidia-smi").write_bytes(b"program")

    def get(self) -> Path:
        torch = self.packages / "torch"
        interpreter = Interpreter(
            python=Path("python"),
            torch=torch,
            torch_version="2.0",
            cuda="13.0",
            packages=(self.packages,),
            system="Linux",
            machine="x86_64",
            libc="glibc",
        )
        return build.built(interpreter, "cc", self.folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    made = Cache(tmp_path)
    monkeypatch.setattr(build, "_build", made.make)
    monkeypatch.setattr(generate, "libraries", lambda *_: [generate.Library("cuda", "libcuda.so")])
    return made


def test_it_is_built_once(cache: Cache) -> None:
    assert cache.get() == cache.get()
    assert cache.count == 1


@pytest.mark.parametrize("damage", ["truncated", "emptied", "deleted", "added", "digests", "all"])
def test_a_damaged_build_is_made_again(cache: Cache, damage: str) -> None:
    """It stayed broken, and processes ended with exit code 135."""
    library = cache.get() / "libcuda.so.1"
    if damage == "truncated":
        library.write_bytes(b"lib")
    elif damage == "emptied":
        library.write_bytes(b"")
    elif damage == "deleted":
        library.unlink()
    elif damage == "added":
        (library.parent / "libcublas.so.13").write_bytes(b"planted")
    elif damage == "digests":
        (library.parent / "digests.json").write_text("[")
    else:
        for path in sorted(library.parent.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    again = cache.get()
    assert cache.count == 2
    assert (again / "libcuda.so.1").read_bytes() == b"library"
    assert not (again / "libcublas.so.13").exists()


def test_another_package_does_not_build_it_again(cache: Cache) -> None:
    first = cache.get()
    (cache.packages / "requests-2.0.dist-info").mkdir()
    assert cache.get() == first
    assert cache.count == 1


def test_what_a_package_wants_builds_it_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache.get()
    (cache.packages / "kernels-2.0.dist-info").mkdir()
    wanted = generate.Library("cuda", "libcuda.so", {None: {"cuMemAlloc"}})
    monkeypatch.setattr(generate, "libraries", lambda *_: [wanted])
    assert cache.get() != first


def test_a_folder_that_others_can_write_to_is_not_believed(cache: Cache) -> None:
    cache.get()
    cache.folder.chmod(0o777)
    cache.get()
    assert cache.count == 2
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_refused(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.get()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        cache.get()


def test_what_others_planted_is_not_loaded(cache: Cache, tmp_path: Path) -> None:
    """A link stayed when the rest of the folder was deleted, and the build behind it was loaded."""
    first, planted = cache.get(), tmp_path / "planted"
    first.rename(planted)
    first.symlink_to(planted)
    keys = cache.folder / "keys"
    keys.rename(tmp_path / "keys")
    keys.symlink_to(tmp_path / "keys")
    cache.folder.chmod(0o777)
    again = cache.get()
    assert cache.count == 2
    assert not again.is_symlink()
    assert not keys.is_symlink()
    assert (planted / "libcuda.so.1").exists()


def test_a_build_that_is_a_link_is_made_again(cache: Cache, tmp_path: Path) -> None:
    first = cache.get()
    first.rename(tmp_path / "planted")
    first.symlink_to(tmp_path / "planted")
    assert not cache.get().is_symlink()
    assert cache.count == 2


def test_a_folder_that_everybody_can_replace_is_refused(cache: Cache, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="everybody can write"):
        cache.get()
    tmp_path.chmod(0o1777)
    cache.get()


@pytest.mark.parametrize("left", [b"", b"torch", b"../..", b"/etc", b"\xff"])
def test_half_a_note_is_not_followed(cache: Cache, left: bytes) -> None:
    """A full disk left an empty one, and the whole cache was deleted."""
    first = cache.get()
    (note,) = (cache.folder / "keys").iterdir()
    note.write_bytes(left)
    assert cache.get() == first
    assert cache.count == 1


def test_a_build_of_another_process_is_waited_for_and_said(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been suspended."""
    cache.folder.mkdir()
    said: list[str] = []
    with (cache.folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def on_wait() -> None:
            said.append("waiting")
            fcntl.flock(file, fcntl.LOCK_UN)

        with build._locked(cache.folder / "lock", on_wait):
            assert said == ["waiting"]


def test_the_last_few_builds_stay(cache: Cache) -> None:
    library = cache.packages / "torch" / "lib" / "libtorch_cuda.so"
    for number in range(8):
        library.write_bytes(b"torch" * (number + 2))
        last = cache.get()
    left = list(cache.folder.glob("torch-*"))
    assert len(left) == 4
    assert last in left


def test_what_a_killed_build_left_goes(cache: Cache) -> None:
    cache.folder.mkdir()
    (cache.folder / "tmpkilled" / "made").mkdir(parents=True)
    cache.get()
    assert not (cache.folder / "tmpkilled").exists()


@pytest.mark.parametrize("how", ["error", "signal"])
def test_compilers_end_with_the_build(how: str, tmp_path: Path) -> None:
    """And what they started: a compiler is a program that starts others."""
    compilers, note = Compilers(tmp_path), tmp_path / "pid"
    command = ["sh", "-c", f"sleep 60 & echo $! > {note}; wait"]

    def compile_until_interrupted() -> None:
        with compilers.ending(), ThreadPoolExecutor(1) as pool, compilers.ending():
            pool.submit(compilers.run, command)
            while not (note.exists() and note.read_text().strip()):
                time.sleep(0.01)
            if how == "error":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt if how == "error" else SystemExit):
            compile_until_interrupted()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - began < 30
    state = Path(f"/proc/{note.read_text().strip()}/stat")
    while state.exists() and state.read_text().split()[2] != "Z":  # it was told to end
        assert time.monotonic() - began < 30
        time.sleep(0.01)
