"""Import torch once, then fork a child per job before any CUDA call.

Importing takes seconds, so the host does it once for all rungs. It must never touch a GPU, because
a CUDA context does not survive a fork. Libraries that query the device when imported (bitsandbytes,
and peft because of it) are therefore imported in the child; what they import in turn is loaded
here. If a library touches the GPU anyway, each child starts a new interpreter instead: slower, but
still correct.

Simulations touch no GPU and run in the host itself. It remembers what fake operators return, which
makes the next rung about twice as fast.

The protocol has one JSON object per line. In: {"job", "reply", "log"} (paths). Out: {"ready"}, then
for each job {"started": pid} and {"exited": pid, "status": exit code or minus the signal}.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TextIO

from oomdoctor.system.environment import kept_variables, variable
from oomdoctor.worker.replacing import module_if_there, replaced

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PRELOAD = (
    "torch",
    "torch.distributed.tensor",
    "accelerate",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.generation.utils",
)
# A simulation compiles nothing.
_PRELOAD_TO_COMPILE = (
    "torch._dynamo",
    "torch._dynamo.repro.after_dynamo",
    "torch._inductor.compile_fx",
)
_ASKS_FOR_TORCHAO = ("transformers.utils", "transformers.utils.import_utils")
# Without a GPU these imports are safe, and they would cost each child half a second.
_PRELOAD_ON_CPU = (
    "bitsandbytes",
    "peft",
    "transformers.trainer",
    "oomdoctor.worker.measuring.measure",
    "oomdoctor.worker.simulating.simulate",
)


def serve(run_job: Callable[[Path, Path], None], *, isolated: bool = True) -> int:
    """Read jobs from stdin until it ends; run each in a forked child, one at a time.

    Without `isolated` they run in the host itself.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Orphans of a job become children of the host, so that it can end them.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a survey stops
    requests, events = _private_streams()
    if not isolated:
        _without_hub_kernels()
    _preload(compiles=isolated)
    _tell(events, {"ready": os.getpid()})
    for line in requests:
        request = json.loads(line)
        if not isolated:
            _tell(events, {"started": os.getpid()})
            status = run_here(request, run_job)
            _tell(events, {"exited": os.getpid(), "status": status})
            continue
        touched = cuda_was_touched()  # torch denies it in a child
        pid = os.fork()
        if pid == 0:
            _child(request, run_job, (requests, events), touched)
        _tell(events, {"started": pid})
        _, status = os.waitpid(pid, 0)
        _end_leftovers(pid)
        _tell(events, {"exited": pid, "status": os.waitstatus_to_exitcode(status)})
    return 0


def _preload(*, compiles: bool) -> None:
    """Import what jobs need; collecting garbage meanwhile would take a quarter of the time."""
    cpu_only = variable("CUDA_VISIBLE_DEVICES") == ""
    names = (*_PRELOAD, *(_PRELOAD_TO_COMPILE if compiles else ()))
    gc.disable()
    with _without_torchao():
        for name in names:
            module_if_there(name)  # if a version does not have one, only each child is slower
    for name in _PRELOAD_ON_CPU if cpu_only else ():
        module_if_there(name)
    gc.freeze()  # the libraries stay: later collections need not look at them
    gc.enable()


def _without_hub_kernels() -> None:
    """Let no library load compiled code from the hub, as bitsandbytes does when it is imported.

    A simulation runs no kernel, and a login node may wait a minute for a network.
    """
    kernels = module_if_there("kernels")
    if kernels is not None:
        vars(kernels)["get_kernel"] = _refuse_kernel


def _refuse_kernel(name: str, *_: object, **__: object) -> NoReturn:
    raise ImportError(f"a simulation loads no kernel from the hub: {name}")


@contextlib.contextmanager
def _without_torchao() -> Iterator[None]:
    """Keep transformers from importing torchao, which asks for Triton, and that touches CUDA.

    It takes half a second, too. transformers needs it here for checkpoints in torchao's formats
    only. Jobs import it themselves.
    """
    with contextlib.ExitStack() as stack:
        for place in map(module_if_there, _ASKS_FOR_TORCHAO):
            if hasattr(place, "is_torchao_available"):
                never = replaced(place, "is_torchao_available", lambda *_, **__: False)
                stack.enter_context(never)
        yield


def _private_streams() -> tuple[TextIO, TextIO]:
    """Separate descriptors for the protocol, so that no print in a library can break it."""
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
    """Run one job in this process, with output to its log; 0, or 1 if it wrote no reply."""
    kept = [os.dup(1), os.dup(2)]
    _log_to(request["log"])
    try:
        with clean_slate():
            run_job(Path(request["job"]), Path(request["reply"]))
        return 0
    except BaseException:  # noqa: BLE001  (the host must go on)
        traceback.print_exc()
        return 1
    finally:
        _flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextlib.contextmanager
def clean_slate() -> Iterator[None]:
    """Restore the environment and the libraries' global settings at the end.

    TrainingArguments writes the mixed precision to the environment. accelerate keeps its state in a
    class. bitsandbytes keeps the precision of states by the address of a parameter. Garbage is
    collected once at the end: the collector would take a fifth of the time, and the tape would
    depend on when it runs.
    """
    gc.disable()
    try:
        with kept_variables():
            yield
    finally:
        gc.enable()
        _forget()
        gc.collect()
        gc.freeze()  # what is left stays (modules, caches): the next collection passes it over


def _forget() -> None:
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if "bitsandbytes" in sys.modules:
        from bitsandbytes.optim import GlobalOptimManager

        GlobalOptimManager.get_instance().initialize()


def _log_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _child(
    request: dict[str, str],
    run_job: Callable[[Path, Path], None],
    streams: tuple[TextIO, TextIO],
    touched: bool,
) -> None:
    """Run one job in its own session, in a new interpreter if it needs one; never returns."""
    status = 1
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _log_to(request["log"])
        for stream in streams:
            os.close(stream.fileno())
        if touched or _imports_first(request["job"]):
            worker = [sys.executable, "-P", "-m", "oomdoctor.worker"]
            os.execv(sys.executable, [*worker, request["job"], request["reply"]])
        run_job(Path(request["job"]), Path(request["reply"]))
        status = 0
    except BaseException as error:  # noqa: BLE001  (this process ends here in any case)
        traceback.print_exc()
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    finally:
        _flush()
        os._exit(status)


def cuda_was_touched(descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Whether this process has initialized CUDA, which opens the unified-memory device.

    An emulated GPU has no such device, so torch is asked as well.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    links = []
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):  # the descriptor that lists the folder is closed
            links.append(str(descriptor.readlink()))
    return any(link.startswith("/dev/nvidia-uvm") for link in links)


def _imports_first(job: str) -> bool:
    """Whether a job has a library that changes others while they are imported."""
    config = json.loads(Path(job).read_text()).get("config", {})
    return bool(config.get("library") == "unsloth")


def _end_leftovers(pid: int) -> None:
    """Kill what a job left behind: its process group, then every orphan that the host adopted."""
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
    """Direct children of this process from /proc, including adopted orphans."""
    pids = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in (task / "children").read_text().split()]
    return pids


def _prctl(option: int, value: int) -> None:
    # Outside Linux there is no prctl; then only the parent's kill of the group helps.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
