"""The folder of one watched command: what its processes are asked, and where they answer.

It is in the cache folder and removed at the end, so a run leaves nothing behind.

What `run` is asked, and the same request as a line to type.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oomdoctor.commands.devices.emulated import EmulatedGpus
from oomdoctor.commands.jobs.host import python_path
from oomdoctor.emulator.variables import ALONE, LAUNCHES
from oomdoctor.errors import machine_error
from oomdoctor.private_folders import made_private, remove
from oomdoctor.records.facts.run_values import Weights
from oomdoctor.system.environment import WATCH_FOLDER, cache_dir
from oomdoctor.system.store.live_logs import is_alive

PATIENCE = 20  # steps after which ranks no longer wait for each other to find memory repeat
_HOOK = Path("monitor", "inside", "entry", "sitecustomize.py")


@contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder that only this user can read; removed at the end.

    If others could replace what is in the cache folder, it is among the temporary files.

    Raises:
        OomDoctorError: the folder cannot be made (exit 5).
    """
    base = cache_dir() / "sessions"
    prefix = f"{os.getpid()}-{_host()}-"
    try:
        try:
            made_private(base)
            _remove_left_over(base)
        except PermissionError:
            base, prefix = Path(tempfile.gettempdir()), f"oomdoctor-{prefix}"
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
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


def watching_environment(folder: Path, request: WatchRequest) -> dict[str, str]:
    """The variables that make every Python process of a command watch itself.

    On real GPUs memory is watched by the allocator's counters, which costs a training no time.
    """
    path = python_path(folder)
    (folder / "lib" / _HOOK.name).symlink_to(Path(__file__).resolve().parents[2] / _HOOK)
    asked = {
        "steps": request.steps,
        "patience": PATIENCE,
        "weights": request.weights,
        "counted": request.gpus is None,
        "pictures": request.gpus is not None
        and (request.breakdown or request.max_peak is not None),
        "launches": request.notes_launches,
        "goes_past": request.gpus is not None and not request.stop_at_oom,
        "changes": dict(request.changes),
        "branches": dict(request.branches),
    }
    (folder / "watch.json").write_text(json.dumps(asked))
    alone = request.gpus is not None and request.gpus.alone
    noting = {LAUNCHES: str(folder)} if request.notes_launches else {}
    return {
        WATCH_FOLDER: str(folder),
        "PYTHONPATH": path,
        **noting,
        **({ALONE: "1"} if alone else {}),
    }


def _remove_left_over(base: Path) -> None:
    """Remove folders of runs that were killed on this computer; others may share the folder."""
    for folder in base.iterdir():
        pid, _, rest = folder.name.partition("-")
        here = rest.rpartition("-")[0] == _host()
        if here and pid.isdigit() and not is_alive(int(pid)):
            remove(folder)


def _host() -> str:
    return re.sub(r"[^\w.]", "", platform.node()) or "host"


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to run, on which GPUs, with which interpreter.

    Without `gpus` the command runs on those of this machine. `steps` is "steady" (stop once memory
    repeats), "all" or a number of optimizer steps. With `weights` "synthetic", `from_pretrained`
    needs no checkpoint. `values` is what unknown values are taken to be: "max", "half" or a number.
    With `most`, this is a second run, with the most that they can select, and the `branches` that
    they decide go the way that needs more. `path` is the PATH of the
    command; None: ours. `case` is the folder for what is kept if memory runs out; None: one in the
    state folder. Emulated GPUs go on past their memory, unless the command is to get
    the error (`stop_at_oom`). `max_peak` is the peak that is allowed, as typed. `cure` runs it
    again with remedies, of which `changes` are those of transformers' TrainingArguments that no
    file says. Unless it `keeps_case`, nothing is kept if memory runs out. With
    `breakdown` or `max_peak`, the report of an emulated run that fits says what its peak held. With
    `why` it says where the time of a step goes; `trace` is the file for that step.
    """

    command: tuple[str, ...]
    gpus: EmulatedGpus | None
    python: Path | None
    steps: str | int
    weights: Weights = "real"
    values: str | None = None
    path: str | None = None
    case: Path | None = None
    most: bool = False
    stop_at_oom: bool = False
    cure: bool = False
    max_peak: str | None = None
    breakdown: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    branches: Mapping[str, Any] = field(default_factory=dict)
    keeps_case: bool = True
    why: bool = False
    trace: Path | None = None

    @property
    def notes_launches(self) -> bool:
        """Whether the emulated device notes what is launched."""
        return self.gpus is not None and (self.why or self.trace is not None)

    @property
    def assumed(self) -> str | None:
        """What unknown values are taken to be in this run; None: zeros."""
        return "max" if self.most else self.values


def line_of(request: WatchRequest, card: str, *, alone: bool) -> str:
    """The same request on another card, as a line to type; with `alone`, one rank runs."""
    count = 1 if request.gpus is None else request.gpus.count
    words = ["--emulate", card if count == 1 else f"{count}x{card}"]
    words += ["--ranks", "1"] if alone else []
    words += ["--steps", str(request.steps)] if request.steps != "steady" else []
    words += ["--cure"] if request.cure else []
    words += ["--stop-at-oom"] if request.stop_at_oom else []
    words += ["--max-peak", request.max_peak] if request.max_peak is not None else []
    words += ["--breakdown"] if request.breakdown else []
    words += ["--why"] if request.why else []
    words += ["--values", request.values] if request.values is not None else []
    words += ["--weights", request.weights] if request.weights != "real" else []
    words += ["--python", str(request.python)] if request.path is not None else []
    return shlex.join(["oomdoctor", "run", *words, "--", *request.command])
