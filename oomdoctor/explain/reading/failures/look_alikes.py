"""Failures that are mistaken for out of memory, and all other exceptions by kind: one row each.

`diagnosis.verdict` has the answer for each name. Rows for messages come before rows for
classes of exceptions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from oomdoctor.explain.reading.dialects import any_hint


@dataclass(frozen=True, slots=True)
class LookAlike:
    """A kind of failure: the contract's name and the words that identify it.

    `hints` are plain words separated by |, one of which is in every such line. A row without hints
    also needs the class of an exception on the line.
    """

    name: str
    words: str
    hints: str = ""

    @property
    def strong(self) -> bool:
        """Whether the words are enough, without the class of an exception."""
        return bool(self.hints)


LOOK_ALIKES: tuple[LookAlike, ...] = (
    LookAlike(
        "device_mismatch",
        (
            r"Expected all tensors to be on the same device|found at least two devices"
            r"|[Ee]xpected object of device type|Input type \(torch\.cuda\.\w+\) and weight type"
            r"|Tensor for argument #\d+ .{0,40}is on (?:CPU|cpu)"
        ),
        "same device|two devices|device type",
    ),
    LookAlike(
        "device_assert",
        r"device-side assert triggered|Assertion `.{1,120}` failed",
        "assert|Assertion",
    ),
    LookAlike(
        "illegal_memory_access",
        (
            r"illegal memory access|misaligned address|CUDA_ERROR_ILLEGAL_ADDRESS"
            r"|cudaErrorIllegalAddress|MMU Fault"
        ),
        "memory access|misaligned|MMU Fault",
    ),
    LookAlike(
        "hardware",
        (
            r"out of resource: shared memory|OutOfResources: out of resource"
            r"|no kernel image is available|uncorrectable ECC|fallen off the bus"
            r"|Found no NVIDIA driver|CUDA driver version is insufficient"
            r"|NVIDIA driver on your system is too old|forward compatibility was attempted"
            r"|is not compatible with the current PyTorch installation"
            r"|unspecified launch failure"
            r"|only supports Ampere GPUs or newer|No CUDA GPUs are available"
            r"|CUDA-capable device\(s\) is/are busy|hardware error|Xid \(PCI"
            r"|State=(?:NODE|BOOT)_FAIL\b|CANCELLED AT \S+ DUE TO NODE FAILURE"
        ),
        (
            r"resource: shared|kernel image|ECC|fallen off|NVIDIA driver|launch failure|Ampere|Xid"
            r"|_FAIL\b|DUE TO|driver version|forward compat|not compatible"
        ),
    ),
    LookAlike(
        "dtype",
        (
            r"not implemented for '(?:Half|BFloat16|Float8\w*)'|expected scalar type \w+ but found"
            r"|mat1 and mat2 must have the same dtype|Attempting to unscale FP16 gradients"
            r"|setup doesn't support bf16|[Bb]f(?:loat)?16 is (?:only|not) supported"
            r"|expected m1 and m2 to have the same dtype|same dtype, but got"
        ),
        "not implemented for",
    ),
    LookAlike(
        "nan_loss",
        (
            r"[Ll]oss is (?:nan|NaN|inf)|(?:nan|NaN) loss|returned nan values|contains either `inf`"
            r"|Current loss scale already at minimum|'loss': (?:nan|'nan')"
        ),
        "is nan|is NaN|is inf|nan loss|NaN loss|nan values|'loss': '?nan",
    ),
    LookAlike(
        "disk_full",
        r"No space left on device|Disk quota exceeded|not enough (?:free )?disk space",
        "No space left|quota exceeded",
    ),
    LookAlike(
        "timeout",
        (
            r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime \S* exceeded"
            r"|Watchdog caught collective operation timeout"
        ),
        "DUE TO|RUNLIMIT|Watchdog",
    ),
    LookAlike("duplicate_gpu", r"Duplicate GPU detected", "Duplicate GPU"),
    LookAlike(
        "port_in_use",
        r"EADDRINUSE|[Aa]ddress already in use|errno: 98\b",
        "EADDRINUSE|ddress already",
    ),
    LookAlike(
        # cuBLAS and cuDNN create their handles with the first use.
        "not_initialized",
        r"(?:CUDNN|CUBLAS|CUSOLVER|CUSPARSE)_STATUS_NOT_INITIALIZED",
        "STATUS_NOT_INIT",
    ),
    LookAlike(
        # Managed memory, as in WSL and under virtual machines. The library prints this and exits.
        "paged_optimizer",
        r"Error (?:operation not supported|invalid device ordinal) at line \d+ in file \S*"
        r"pythonInterface",
        "pythonInterface",
    ),
    LookAlike(
        "preemption",
        r"DUE TO PREEMPTION|preempted by|Spot instance",
        "DUE TO|PREEMPT|preempted",
    ),
    LookAlike(
        # Only of a job: a step is also canceled when one of its tasks fails.
        "cancelled",
        r"State=CANCELLED\b|\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*",
        "CANCELLED",
    ),
    LookAlike(
        "timeout",
        r"TimeoutE(?:rror|xpired)|timed out",
    ),
    LookAlike(
        "connection",
        (
            r"ncclSystemError|ncclRemoteError|Max retries exceeded|Name or service not known"
            r"|Connection(?:Error|ResetError|Refused|Aborted| refused| reset by peer| closed by)"
            r"|couldn't connect to|Couldn't reach|LocalEntryNotFoundError|HTTPError|SSLError"
            r"|GatedRepoError|RepositoryNotFoundError|OfflineModeIsEnabled|NCCL error"
        ),
    ),
    LookAlike(
        "shape",
        (
            r"shapes cannot be multiplied|size mismatch|is invalid for input of size"
            r"|size of tensor a"
            r"|Sizes of tensors must match|must match the size|shape mismatch|same number of dimens"
            r"|stack expects each tensor to be equal size|resize storage that is not resizable"
        ),
    ),
    LookAlike(
        "import",
        (
            r"(?:ImportError|ModuleNotFoundError)|CUDA [Ss]etup failed"
            r"|cannot open shared object file|undefined symbol"
        ),
    ),
    LookAlike("context_length", r"maximum context length|longer than the maximum model"),
    LookAlike("index", r"IndexError|index out of range"),
    LookAlike("key", (r"KeyError")),
    LookAlike("type", (r"TypeError|AttributeError")),
)
QUOTED = "quoted"  # the words stand in source code, data, a command or documentation
SHUTDOWN = LookAlike(
    # The real message names the process; without it the words are quoted or printed at shutdown.
    "shutdown_artifact",
    r"DataLoader worker (?!\(pid\(?s?\)? ?\d).{0,20}is killed by signal: Killed",
    "illed",
)
# The class of any exception, and the hints of the rows that need no class.
MAY_FAIL = any_hint(
    (
        r"Error\b|Exception\b|Expired\b|OutOfResources|Failure\b",
        *(row.hints for row in LOOK_ALIKES if row.hints),
    )
)
_compiled = cache(re.compile)  # on first use: most logs have none of these
_EXCEPTION = re.compile(
    r"(?:^|[\s:'\"`(])((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Expired|Exit|Interrupt"
    r"|OutOfResources|Failure))(?:: ?(.*))?$"
)
# Raised because another process failed: never the cause.
_CONSEQUENCES = re.compile(
    r"ChildFailedError|ProcessRaisedException|ProcessExitedException|RayTaskError|EngineDeadError"
    r"|CalledProcessError|NCCL communicator was aborted|WorkerCrashedError"
    r"|Engine core init\w* failed"
    r"|DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly|KeyboardInterrupt|SystemExit"
    r"|BrokenProcessPool|TerminatedWorkerError|SIGTERM|SignalException"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A look-alike in a line: its name, the class of the exception and its message."""

    name: str
    exception: str | None
    message: str
    strong: bool
    consequence: bool


def _tells(row: LookAlike, text: str) -> bool:
    return _compiled(row.words).search(text) is not None


def find_look_alike(text: str) -> Found | None:
    """The failure that a line (or a message of several lines) reports, or None."""
    if _tells(SHUTDOWN, text):
        return Found(SHUTDOWN.name, None, text.strip()[:400], True, False)
    first = text.split("\n", 1)[0]
    match = _EXCEPTION.search(first.rstrip()) if len(first) < 20_000 else None
    exception = match[1] if match else None
    row = next((row for row in LOOK_ALIKES if _tells(row, text)), None)
    if match is None and (row is None or not row.strong):
        return None
    message = (match[0] if match else text).strip(" \t\r\n:'\"`(")[:400]
    consequence = _CONSEQUENCES.search(first) is not None
    if row is None:
        return Found("other", exception, message, False, consequence)
    return Found(row.name, exception, message, row.strong, consequence)
