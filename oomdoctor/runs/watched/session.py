"""The folder of one watched command: what its processes are asked, and where they answer.

It is in the cache folder and removed at the end, so a run leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from oomdoctor.emulator.variables import ALONE
from oomdoctor.errors import machine_error
from oomdoctor.system.environment import WATCH_FOLDER, cache_dir, variable

Weights = Literal["real", "synthetic"]
PATIENCE = 20  # steps after which ranks no longer wait for each other to find memory repeat
_HOOK = Path("monitor", "inside", "entry", "sitecustomize.py")


@contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder that only this user can read; removed at the end.

    Raises:
        OomDoctorError: the cache folder cannot be written (exit 5).
    """
    base = cache_dir() / "sessions"
    try:
        base.mkdir(parents=True, exist_ok=True)
        _remove_left_over(base)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=base))
    except OSError as error:
        raise machine_error(
            "cache_unwritable",
            f"cannot write to {base}: {error.strerror}",
            "free some space, or set XDG_CACHE_HOME to a writable folder",
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def watching_environment(
    folder: Path,
    steps: str | int,
    weights: Weights = "real",
    *,
    alone: bool = False,
    counted: bool = False,
) -> dict[str, str]:
    """The variables that make every Python process of a command watch itself.

    `steps` is "steady", "all" or a number of optimizer steps. With `weights` "synthetic",
    `from_pretrained` loads checkpoints without data. With `alone`, only the first rank runs. With
    `counted`, memory is watched by the allocator's counters, which costs a training no time.
    """
    package = Path(__file__).resolve().parents[2]
    library = folder / "lib"
    library.mkdir()
    (library / package.name).symlink_to(package, target_is_directory=True)
    (library / _HOOK.name).symlink_to(package / _HOOK)
    asked = {"steps": steps, "patience": PATIENCE, "weights": weights, "counted": counted}
    (folder / "watch.json").write_text(json.dumps(asked))
    path = os.pathsep.join(filter(None, (str(library), variable("PYTHONPATH"))))
    found = {WATCH_FOLDER: str(folder), "PYTHONPATH": path}
    return found | {ALONE: "1"} if alone else found


def _remove_left_over(base: Path) -> None:
    """Remove folders of runs that were killed."""
    for folder in base.iterdir():
        pid = folder.name.partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
