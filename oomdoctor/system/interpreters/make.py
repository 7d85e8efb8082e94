"""Makes the environment with the versions of `--with`, once, and keeps it.

A new environment shares the packages of this interpreter, so pip downloads only the versions asked
for and what must change with them. It gets its name when it is complete: a process that is stopped
leaves nothing that looks ready.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TextIO

from oomdoctor.errors import machine_error, usage_error
from oomdoctor.system.interpreters.pip import Helper, Stopped, install, no_pip, run
from oomdoctor.system.interpreters.venvs import (
    ABOUT,
    differing,
    folder_of,
    interpreter_with,
    is_ready,
    names_and_versions,
    python_in,
    shared_folders,
)
from oomdoctor.system.machine import libraries
from oomdoctor.system.machine.lock import take_lock

# Libraries that a simulation imports. pip may change them where a version asked for needs it.
_COMPANIONS = ("transformers", "accelerate", "peft", "bitsandbytes")
_IMPORTED = ("torch", *_COMPANIONS)
# Built for one version of torch: they break the import of others beside another torch.
_BOUND_TO_TORCH = ("torchvision", "torchaudio", "torchao", "flash_attn", "xformers")
_TORCH_INDEX = "https://download.pytorch.org/whl/"
_POLL_S = 0.3


def make_ready(asked: tuple[str, ...], helper: Helper) -> None:
    """Make the environment with these versions, if it does not exist yet.

    Waits while another process makes the same one.

    Raises:
        OomDoctorError: the versions do not exist or do not work together (exit 2), or this machine
            cannot make the environment (exit 5).
        Stopped: `helper.stopped()` became true; nothing is left behind.
    """
    folder = folder_of(asked)
    if interpreter_with(asked) != str(python_in(folder)) or is_ready(folder):
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder, helper):
            if not is_ready(folder):
                _make(folder, asked, helper)
    except OSError as error:
        raise machine_error(
            "environment_unwritable",
            f"cannot make an environment in {folder.parent}: {error.strerror or error}",
            "free some space, or set XDG_CACHE_HOME to a writable folder",
        ) from error


def _make(folder: Path, asked: tuple[str, ...], helper: Helper) -> None:
    helper.say(f"making an environment with {', '.join(asked)} (once; kept in {folder})")
    started = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(started, ignore_errors=True)  # of a process that was killed
    try:
        _create(started, asked)
        _fill(python_in(started), asked, helper)
        _check(python_in(started), asked, helper)
        about = {"versions": asked, "made_at": time.time()}
        (started / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        started.rename(folder)
    finally:
        shutil.rmtree(started, ignore_errors=True)


def _create(folder: Path, asked: tuple[str, ...]) -> None:
    """An environment without pip that also finds the packages of this interpreter."""
    import venv

    venv.EnvBuilder(symlinks=True).create(folder)
    own = next(folder.glob("lib/python*/site-packages"))
    lines = [f"import site; site.addsitedir({path!r})" for path in shared_folders()]
    if "torch" in names_and_versions(asked):
        lines.append(f"import sys; sys.modules.update(dict.fromkeys({_BOUND_TO_TORCH!r}))")
    (own / "oomdoctor-shared.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _fill(python: Path, asked: tuple[str, ...], helper: Helper) -> None:
    """Install the versions asked for."""
    # Not importlib.util.find_spec: asked for pip, setuptools turns its own distutils off, and after
    # that torch.compile fails in this process.
    if PathFinder.find_spec("pip") is None:
        if PathFinder.find_spec("ensurepip") is None:
            raise no_pip()
        code, _ = run([str(python), "-m", "ensurepip"], helper)
        if code:
            raise no_pip()
    names = names_and_versions(asked)
    others = [requirement for requirement in asked if not requirement.startswith("torch==")]
    if others:
        here = libraries.versions([*_COMPANIONS, "torch"])
        keep = [name for name in _COMPANIONS if name not in names and here[name] is not None]
        constraints = python.parents[1] / "constraints.txt"
        torch = here["torch"]
        constraints.write_text(f"torch=={torch}\n" if torch else "", encoding="utf-8")
        install(python, ["-c", str(constraints), *others, *keep], asked, helper)
    if "torch" in names:
        _add_torch(python, names["torch"], asked, helper)


def _add_torch(python: Path, version: str, asked: tuple[str, ...], helper: Helper) -> None:
    """The CPU build of torch where pip finds it, else the CUDA build with all it needs."""
    helper.say(
        "  torch: about 200 MB for the build without CUDA; several GB where only that with CUDA "
        "is found"
    )
    index = _TORCH_INDEX + (version.partition("+")[2] or "cpu")
    extra = ["--retries", "1", "--extra-index-url", index]
    install(python, ["--no-deps", *extra, f"torch=={version}"], asked, helper)
    needs = _ask(python, helper, "requires", "torch")
    if needs:
        install(python, needs, asked, helper)
    if _ask(python, helper, "imports", "torch"):
        helper.say("  this build of torch needs its CUDA libraries: several GB more")
        install(python, [f"torch=={version}"], asked, helper)


def _check(python: Path, asked: tuple[str, ...], helper: Helper) -> None:
    """Check that the versions are there and can be imported together."""
    names = names_and_versions(asked)
    installed = _ask(python, helper, "versions", *names)
    wrong = differing(asked, installed)
    if wrong:
        name = wrong[0].split("==")[0]
        raise machine_error(
            "version_hidden",
            f"the new environment has {name} {installed[name]} instead of {wrong[0]}",
            "unset PYTHONPATH, which may put another version first",
        )
    _, lines = run([str(python), "-m", "pip", "check", "--disable-pip-version-check"], helper)
    subjects = {*names, *_COMPANIONS}
    broken = [
        line
        for line in lines
        if line.split(" ")[0].lower().replace("_", "-") in subjects - {"torch"}
        and (" has requirement " in line or "which is not installed" in line)
    ]
    helper.say("  checking that the libraries can be imported")
    failed = _ask(python, helper, "imports", *_IMPORTED)
    if broken or failed:
        why = [*broken, *(f"{name} cannot be imported: {text}" for name, text in failed.items())]
        raise usage_error(
            "versions_unusable",
            f"--with: {', '.join(asked)} does not work with the other libraries here"
            + "".join(f"\n{line}" for line in why),
            "add versions of those libraries to --with that fit together",
        )


def _ask(python: Path, helper: Helper, *words: str) -> Any:
    """The answer of `libraries` in that interpreter."""
    code, lines = run([str(python), "-P", str(Path(libraries.__file__).resolve()), *words], helper)
    try:
        if code:
            raise ValueError
        answer = json.loads(lines[-1])
    except ValueError:
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        raise machine_error(
            "environment_unusable",
            f"the new interpreter failed: {last.strip()}",
            "make an environment yourself, and pass its Python with --python",
        ) from None
    return answer


@contextmanager
def _alone(folder: Path, helper: Helper) -> Iterator[None]:
    """Hold the lock of an environment; on a file system without locks, go on without.

    Its file goes with the lock. A process that waited for a file that is gone begins again.
    """
    path = folder.with_name(f".{folder.name}.lock")
    announced = False
    while True:
        with path.open("a", encoding="utf-8") as file:
            if not take_lock(file, quiet=True):
                if not announced:
                    helper.say("waiting for another process that makes the same environment")
                announced = True
            elif _is_file_at(path, file):
                try:
                    yield
                finally:
                    with suppress(OSError):
                        path.unlink()
                return
        if helper.stopped():
            raise Stopped
        time.sleep(_POLL_S)


def _is_file_at(path: Path, file: TextIO) -> bool:
    """Whether the path still leads to an open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False
