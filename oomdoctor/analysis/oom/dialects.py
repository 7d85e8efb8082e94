"""The dialects of out-of-memory messages in one table, and the parser that reads them.

A row says how a message opens and which figures it may hold. Openings are told apart by their
wording alone; figures are looked for one by one, so a message that a log wrapped or cut short
still gives what it has. A new dialect is a new row; a new figure is a new pattern in `figures`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from oomdoctor.analysis.oom.figures import SIZE, size_bytes
from oomdoctor.records.result import OomEvent


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wording: the contract's name of its kind, where it is written and since when.

    `opening` finds the message, `figures` maps fields of `OomEvent` to patterns with one group
    that is a size. `source` is the file that prints it, `versions` the releases that do.
    """

    name: str
    versions: str
    source: str
    opening: re.Pattern[str]
    figures: Mapping[str, re.Pattern[str]]


def _figures(**patterns: str) -> dict[str, re.Pattern[str]]:
    return {
        field: re.compile(text.replace("SIZE", f"({SIZE})"), re.IGNORECASE)
        for field, text in patterns.items()
    }


_ASKED = r"Tried to allocate SIZE"
# "(GPU 0; T total capacity; A already allocated; F free; [M allowed;] R reserved|cached)"
_BRACKETS = _figures(
    requested_bytes=_ASKED,
    capacity_bytes=r"SIZE total capacity",
    allocated_bytes=r"SIZE already allocated",
    free_bytes=r"SIZE free",
    allowed_bytes=r"SIZE allowed",
    reserved_bytes=r"SIZE (?:reserved in total|cached)",
)
# "has a total capacity of T of which F is free. [...] Of the allocated memory A is allocated ..."
_SENTENCES = _figures(
    requested_bytes=_ASKED,
    capacity_bytes=r"total capac(?:i?ty) of SIZE",
    free_bytes=r"of which SIZE is free",
    process_bytes=r"this process has SIZE memory in use",
    allowed_bytes=r"SIZE allowed",
    allocated_bytes=r"SIZE is allocated by PyTorch",
    private_pools_bytes=r"SIZE allocated in private pools",
    reserved_unallocated_bytes=r"SIZE is reserved by PyTorch but unallocated",
)
_ASYNC = _figures(
    allocated_bytes=r"Currently allocated\s*: SIZE",
    requested_bytes=r"Requested\s*: SIZE",
    capacity_bytes=r"Device limit\s*: SIZE",
    free_bytes=r"Free \(according to CUDA\)\s*: SIZE",
    allowed_bytes=r"PyTorch limit[^:]*: SIZE",
)
_TRIED = rf"Tried to allocate {SIZE}"
_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"

# Order decides only between rows that open at the same character: the special before the general.
DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "cuda_caching_allocator",
        "torch up to 0.4",
        "THC/generic/THCStorage.cu",
        re.compile(r"cuda runtime error \(2\) : out of memory"),
        {},
    ),
    Dialect(
        "cuda_caching_allocator",
        "torch 1.0-2.0",
        _ALLOCATOR,
        re.compile(rf"CUDA out of memory\. {_TRIED}\s*\(GPU"),
        _BRACKETS,
    ),
    Dialect(
        # 2.1 and 2.2 spell it "capacty"; 2.3 may end after "GPU".
        "cuda_caching_allocator",
        "torch 2.1 and later",
        _ALLOCATOR,
        re.compile(rf"CUDA out of memory\. {_TRIED}"),
        _SENTENCES,
    ),
    Dialect(
        # A log that lost the head of the message.
        "cuda_caching_allocator",
        "torch 2.1 and later",
        _ALLOCATOR,
        re.compile(rf"(?<!out of memory\. ){_TRIED}\.? GPU \d+ has a total capac"),
        _SENTENCES,
    ),
    Dialect(
        "hip",
        "torch for ROCm, 2.1 and later",
        "c10/hip/HIPCachingAllocator.cpp",
        re.compile(rf"HIP out of memory\. {_TRIED}"),
        _SENTENCES,
    ),
    Dialect(
        "xpu",
        "torch 2.3 and later",
        "c10/xpu/XPUCachingAllocator.cpp",
        re.compile(rf"XPU out of memory\. {_TRIED}"),
        _SENTENCES,
    ),
    Dialect(
        # The budget of a rung on the CPU, held by the allocation trace.
        "cpu_allocator",
        "oomdoctor",
        "oomdoctor/worker/trace.py",
        re.compile(rf"CPU out of memory\. {_TRIED}"),
        _SENTENCES,
    ),
    Dialect(
        "cuda_malloc_async",
        "torch 1.13 and later, backend:cudaMallocAsync",
        "c10/cuda/CUDAMallocAsyncAllocator.cpp",
        re.compile(r"Allocation on device \d+ would exceed allowed memory"),
        _ASYNC,
    ),
    Dialect(
        "cpu_allocator",
        "torch 1.0 and later",
        "c10/core/impl/alloc_cpu.cpp",
        re.compile(r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"),
        _figures(requested_bytes=r"you tried to allocate SIZE"),
    ),
    Dialect(
        "cublas",
        "any torch",
        "aten/src/ATen/cuda/Exceptions.h",
        re.compile(r"(?:CUDA error: )?CUBLAS_STATUS_ALLOC_FAILED"),
        {},
    ),
    Dialect(
        "cudnn",
        "any torch",
        "aten/src/ATen/cudnn/Exceptions.h",
        re.compile(r"(?:cuDNN error: )?CUDNN_STATUS_ALLOC_FAILED"),
        {},
    ),
    Dialect(
        "nccl",
        "any NCCL",
        "nccl/src/include/checks.h",
        re.compile(r"Cuda failure (?:\d+ )?'out of memory'"),
        {},
    ),
    Dialect(
        # Paged states and workspaces; the library prints this and ends the process.
        "bitsandbytes",
        "any bitsandbytes",
        "bitsandbytes/csrc/common.h",
        re.compile(r"Error out of memory at line \d+ in file"),
        {},
    ),
    Dialect(
        "triton",
        "any Triton",
        "triton/third_party/nvidia/backend/driver.c",
        re.compile(r"Triton Error \[CUDA\]: out of memory"),
        {},
    ),
    Dialect(
        "cuda_driver",
        "any torch",
        "c10/cuda/CUDAException.cpp",
        re.compile(
            r"CUDA (?:driver )?error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
            r"|cudaErrorMemoryAllocation"
        ),
        {},
    ),
)

_REACH = 1600  # characters after an opening in which its figures stand
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WRAP = re.compile(r"\s*\n\s*(?:\[rank\d+\]:\s*|#\s*)?|[ \t\r\0]+")
_LISTED = re.compile(rf"Process \d+ has ({SIZE}) memory in use")
_TAIL = re.compile(r"[^.)\n]{0,120}[.)]")


def parse_oom(text: str, phase: str = "unknown") -> OomEvent | None:
    """The first out-of-memory message in a text, None if there is none.

    `phase` is what the caller knows of the moment. Figures are exact integers of the printed
    figure times its unit; what is not printed is None.
    """
    flat = _WRAP.sub(" ", _ANSI.sub("", text))
    found = _first(flat, 0)
    if found is None:
        return None
    dialect, opening = found
    following = _first(flat, opening.end())
    end = min(opening.start() + _REACH, following[1].start() if following else len(flat))
    message = flat[opening.start() : end]
    values: dict[str, int | None] = {}
    last = opening.end() - opening.start()
    for field, pattern in dialect.figures.items():
        match = pattern.search(message)
        if match is not None:
            values[field] = size_bytes(match[1])
            last = max(last, match.end())
    if dialect.figures is _SENTENCES:
        values["other_processes_bytes"] = _other_processes(message, values)
    tail = _TAIL.match(message, last)
    shown = message[: tail.end() if tail else last].strip()
    return OomEvent(message=shown, dialect=dialect.name, phase=phase, **values)


def _first(text: str, start: int) -> tuple[Dialect, re.Match[str]] | None:
    found = [
        (dialect, match)
        for dialect in DIALECTS
        if (match := dialect.opening.search(text, start)) is not None
    ]
    return min(found, key=lambda pair: pair[1].start(), default=None)


def _other_processes(message: str, values: Mapping[str, int | None]) -> int | None:
    """Bytes that other processes hold on the device; None where the message does not tell.

    The processes that are listed beside "this process", else what is neither free nor this
    process's. Without "this process" (containers hide the own id) a listed process may be the
    speaker itself: it is when all of them and this allocator together exceed what is in use.
    """
    listed = [size for match in _LISTED.finditer(message) if (size := size_bytes(match[1]))]
    total, free, own = (values.get(f"{k}_bytes") for k in ("capacity", "free", "process"))
    if "this process has" in message:
        if listed or total is None or free is None or own is None:
            return sum(listed) if listed else None
        return max(0, total - free - own)
    allocated, unallocated = values.get("allocated_bytes"), values.get("reserved_unallocated_bytes")
    if not listed or total is None or free is None or allocated is None or unallocated is None:
        return None
    reserved = allocated + unallocated
    if sum(listed) + reserved <= total - free:
        return sum(listed)
    speaker = min((size for size in listed if size >= reserved), default=None)
    return None if speaker is None else sum(listed) - speaker
