"""Import torch once, fork a child per job before any CUDA call.

Importing costs seconds, so the host pays once for all rungs. It must never touch a GPU: a context
does not survive a fork. Imports that ask the device for something (bitsandbytes, and peft because
of it) therefore happen in the child; what they import in turn is loaded here. Should a library
touch the GPU all the same, the children start afresh instead: slower, and still right.

Simulations touch nothing and run in the host itself, because what torch has learned of its fake
kernels makes the next rung faster by a third.

Protocol, one JSON object a line. In: {"job", "reply", "log"} (paths). Out: {"ready"}, then for
each job {"started": pid} and {"exited": pid, "status": exit code or minus the signal}.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from oomdoctor.worker.simulating.clean_slate import clean_slate

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch._dynamo.repro.after_dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.tensor",
    "accelerate",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.generation.utils",
)


# Without a GPU nothing can touch one, and these cost each child half a second.
_PRELOAD_ON_CPU = (
    "bitsandbytes",
    "peft",
    "transformers.trainer",
    "oomdoctor.worker.measuring.measure",
    "oomdoctor.worker.simulating.simulate",
)


def serve(run_job: Callable[[Path, Path], None], *, isolated: bool = True) -> int:
    """Read jobs from stdin until it ends; one forked child each, one at a time.

    Without `isolated` they run in the host itself, one after the other.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Orphans of a job become the host's children, so that it can end them.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a survey stops
    requests, events = _private_streams()
    cpu_only = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    for name in (*_PRELOAD, *(_PRELOAD_ON_CPU if cpu_only else ())):
        # A version without one of these only pays the import in each child.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _tell(events, {"ready": os.getpid()})
    for line in requests:
        request = json.loads(line)
        if not isolated:
            _tell(events, {"started": os.getpid()})
            status = run_here(request, run_job)
            _tell(events, {"exited": os.getpid(), "status": status})
            continue
        pid = os.fork()
        if pid == 0:
            _child(request, run_job, (requests, events))
        _tell(events, {"started": pid})
        _, status = os.waitpid(pid, 0)
        _end_leftovers(pid)
        _tell(events, {"exited": pid, "status": os.waitstatus_to_exitcode(status)})
    return 0


def _private_streams() -> tuple[TextIO, TextIO]:
    """The protocol on descriptors of its own, so that no print of a library can break it."""
    requests = os.fdopen(os.dup(0), "r")
    events = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return requests, events


def _tell(events: TextIO, event: dict[str, int]) -> None:
    events.write(json.dumps(event) + "\n")
    events.flush()


def run_here(request: dict[str, str], run_job: Callable[[Path, Path], None]) -> int:
    """Run one job in this process, its output in the job's log; 0, or 1 if it failed to reply."""
    kept = [os.dup(1), os.dup(2)]
    _log_to(request["log"])
    try:
        with clean_slate():
            run_job(Path(request["job"]), Path(request["reply"]))
    except BaseException:  # noqa: BLE001  (the host goes on, whatever it was)
        traceback.print_exc()
        return 1
    else:
        return 0
    finally:
        _flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _log_to(path: str) -> None:
    """Output goes to this file from now on."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _child(
    request: dict[str, str], run_job: Callable[[Path, Path], None], streams: tuple[TextIO, TextIO]
) -> None:
    """Run one job in a session of its own; never returns."""
    status = 1
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _log_to(request["log"])
        for stream in streams:
            os.close(stream.fileno())
        if cuda_was_touched():
            worker = [sys.executable, "-P", "-m", "oomdoctor.worker"]
            os.execv(sys.executable, [*worker, request["job"], request["reply"]])
        run_job(Path(request["job"]), Path(request["reply"]))
        status = 0
    except BaseException as error:  # noqa: BLE001  (this process ends here, whatever it was)
        traceback.print_exc()
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    finally:
        _flush()
        os._exit(status)


def cuda_was_touched(descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Whether this process has initialised CUDA, which opens the unified-memory device."""
    links = []
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):  # the one that lists the folder is gone by now
            links.append(str(descriptor.readlink()))
    return any(link.startswith("/dev/nvidia-uvm") for link in links)


def _end_leftovers(pid: int) -> None:
    """Kill what a job left behind: its process group, then every orphan that came to the host."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Direct children of this process, from /proc (a subreaper's orphans among them)."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def _prctl(option: int, value: int) -> None:
    # Unknown outside Linux: then only the parent's own kill of the group protects.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
