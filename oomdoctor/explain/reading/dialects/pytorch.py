"""PyTorch's own out-of-memory messages, for every release and device."""

from __future__ import annotations

import re

from oomdoctor.explain.reading.dialects.dialect import Dialect, figures
from oomdoctor.explain.reading.printed_sizes import SIZE

ASKED = r"Tried to allocate SIZE"
# "(GPU 0; T total capacity; A already allocated; F free; [M allowed;] R reserved|cached)"
BRACKETS = figures(
    requested_bytes=ASKED,
    capacity_bytes=r"SIZE total capacity",
    allocated_bytes=r"SIZE already allocated",
    free_bytes=r"SIZE free",
    allowed_bytes=r"SIZE allowed",
    reserved_bytes=r"SIZE (?:reserved in total|cached)",
)
# "has a total capacity of T of which F is free. [...] Of the allocated memory A is allocated ..."
SENTENCES = figures(
    requested_bytes=ASKED,
    capacity_bytes=r"total capac(?:i?ty) of SIZE",
    free_bytes=r"of which SIZE is free",
    process_bytes=r"this process has SIZE memory in use",
    allowed_bytes=r"SIZE allowed",
    allocated_bytes=r"SIZE is allocated by PyTorch",
    private_pools_bytes=r"SIZE allocated in private pools",
    reserved_unallocated_bytes=r"SIZE is reserved by PyTorch but unallocated",
)
_ASYNC = figures(
    allocated_bytes=r"Currently allocated\s*: SIZE",
    requested_bytes=r"Requested\s*: SIZE",
    capacity_bytes=r"Device limit\s*: SIZE",
    free_bytes=r"Free \(according to CUDA\)\s*: SIZE",
    allowed_bytes=r"PyTorch limit[^:]*: SIZE",
)
_TRIED = rf"Tried to allocate {SIZE}"
_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"

TORCH: tuple[Dialect, ...] = (
    Dialect(
        "cuda_caching_allocator",
        "torch up to 0.4, Lua Torch",
        "THC/generic/THCStorage.cu",
        re.compile(r"(?:cuda runtime error \(2\)|error=2) : out of memory"),
        hints="ut of memory",
    ),
    Dialect(
        "cuda_caching_allocator",
        "torch 1.0-2.0",
        _ALLOCATOR,
        re.compile(rf"CUDA out of memory\. {_TRIED}\s*\(GPU"),
        BRACKETS,
        hints="ut of memory",
    ),
    Dialect(
        # 2.1 and 2.2 spell it "capacty"; 2.3 may end after "GPU".
        "cuda_caching_allocator",
        "torch 2.1 and later",
        _ALLOCATOR,
        re.compile(rf"CUDA out of memory\. {_TRIED}"),
        SENTENCES,
        hints="ut of memory",
    ),
    Dialect(
        # The log lost the start of the message.
        "cuda_caching_allocator",
        "torch 2.1 and later",
        _ALLOCATOR,
        re.compile(
            rf"(?<!out of memory\. ){_TRIED}\.? GPU \d+ has a total capac"
            r"|(?<!B\. )(?<!B )(?<!bytes\. )(?<!bytes )GPU \d+ has a total capac(?:i?ty) of \d"
        ),
        SENTENCES,
        hints="ried to alloc|total capac",
    ),
    Dialect(
        # Pasted text that starts in the middle of the message.
        "cuda_caching_allocator",
        "torch 2.1 and later",
        _ALLOCATOR,
        re.compile(
            r"of (?:\S+ \S+ of )?which \S+ \S+ is free"
            r"|(?:Including non-PyTorch memory, )?this process has \S+ \S+ memory in use"
            r"|Of the allocated memory \S+ \S+ is allocated by PyTorch"
        ),
        SENTENCES,
        whole_line=True,
        hints="PyTorch",
    ),
    Dialect(
        "hip",
        "torch for ROCm, 2.1 and later",
        "c10/hip/HIPCachingAllocator.cpp",
        re.compile(rf"HIP out of memory\. {_TRIED}\s*\(GPU"),
        BRACKETS,
        hints="ut of memory",
    ),
    Dialect(
        "hip",
        "torch for ROCm, 2.1 and later",
        "c10/hip/HIPCachingAllocator.cpp",
        re.compile(rf"HIP out of memory\. {_TRIED}"),
        SENTENCES,
        hints="ut of memory",
    ),
    Dialect(
        "xpu",
        "torch 2.3 and later",
        "c10/xpu/XPUCachingAllocator.cpp",
        re.compile(rf"XPU out of memory\. {_TRIED}"),
        SENTENCES,
        hints="ut of memory",
    ),
    Dialect(
        # The memory budget of a rung on the CPU, enforced by the allocation trace.
        "cpu_allocator",
        "oomdoctor",
        "oomdoctor/worker/tracing/trace.py",
        re.compile(rf"CPU out of memory\. {_TRIED}"),
        SENTENCES,
        resource="host",
        hints="ut of memory",
    ),
    Dialect(
        # Other backends that copied the caching allocator: torch_npu, torch_mlu, torch_musa.
        "cuda_caching_allocator",
        "vendors' builds",
        "torch_npu/csrc/core/npu/NPUCachingAllocator.cpp",
        re.compile(rf"\b(?:NPU|MLU|MUSA|HPU) out of memory\. {_TRIED}\s*\("),
        BRACKETS,
        hints="ut of memory",
    ),
    Dialect(
        # Its format_size wrote GB for 1024**3 bytes before it wrote GiB (torch 2.9).
        "mps",
        "torch 1.12 and later",
        "aten/src/ATen/mps/MPSAllocator.mm",
        re.compile(r"MPS backend out of memory"),
        figures(
            requested_bytes=ASKED,
            allocated_bytes=r"MPS allocated: SIZE",
            capacity_bytes=r"max allowed: SIZE",
        ),
        hints="ut of memory",
        binary_units=True,
    ),
    Dialect(
        # Larger than the largest buffer that Metal allows.
        "mps",
        "torch 1.12 and later",
        "aten/src/ATen/mps/MPSAllocator.mm",
        re.compile(rf"Invalid buffer size: {SIZE}"),
        figures(requested_bytes=r"Invalid buffer size: SIZE"),
        hints="buffer size",
        binary_units=True,
    ),
    Dialect(
        "cuda_malloc_async",
        "torch 1.13 and later, backend:cudaMallocAsync",
        "c10/cuda/CUDAMallocAsyncAllocator.cpp",
        re.compile(
            r"Allocation on device \d* ?would exceed allowed memory"
            # ComfyUI prints only the first words.
            r"|(?<=OutOfMemoryError: )Allocation on device\b"
        ),
        _ASYNC,
        hints="ceed allowed memory|OutOfMemory",
    ),
    Dialect(
        # A warning when the driver refuses; the allocator then frees its cache and tries again.
        "cuda_caching_allocator",
        "torch 2.11 and later",
        _ALLOCATOR,
        re.compile(r"memory allocation failed with OOM on device \d+"),
        figures(
            requested_bytes=r"trying to allocate SIZE",
            free_bytes=r"\(free: BYTES",
            capacity_bytes=r"total: BYTES",
        ),
        hints="ed with OOM",
        announces=True,
    ),
    Dialect(
        # While it writes its message, without a working NVML (Jetson, containers).
        "cuda_caching_allocator",
        "torch 2.1 and later",
        _ALLOCATOR,
        re.compile(r"NVML_SUCCESS == .{1,80}INTERNAL ASSERT FAILED"),
        hints="NVML_SUCCESS",
    ),
    Dialect(
        # The message was truncated or repeated without its figures.
        "cuda_caching_allocator",
        "any torch",
        _ALLOCATOR,
        re.compile(r"(?<=Error: )CUDA out of memory\b(?! occurred)"),
        hints="ut of memory",
    ),
    Dialect(
        "cuda_caching_allocator",
        "any torch, as a program logs it",
        _ALLOCATOR,
        re.compile(r"CUDA out of memory(?:[.!](?: .*)?| error)?$"),
        whole_line=True,
        hints="ut of memory",
    ),
    Dialect(
        # It catches the error and tries again in tiles.
        "cuda_caching_allocator",
        "ComfyUI",
        "comfy/sd.py",
        re.compile(r"Ran out of memory when regular VAE (?:en|de)coding"),
        phase="generate",
        hints="ut of memory",
    ),
    Dialect(
        "cuda_caching_allocator",
        "accelerate, every size was tried",
        "accelerate/utils/memory.py",
        re.compile(r"No executable batch size found, reached zero"),
        hints="No executable batch",
    ),
    Dialect(
        "cpu_allocator",
        "torch 1.0 and later",
        "c10/core/impl/alloc_cpu.cpp",
        re.compile(r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"),
        figures(requested_bytes=r"you tried to allocate SIZE"),
        resource="host",
        hints="llocat",
    ),
    Dialect(
        "cpu_allocator",
        "torch 0.4 to 1.x",
        "TH/THGeneral.cpp",
        re.compile(
            r"\$ Torch: not enough memory|enforce fail at CPUAllocator\.cpp(?!.{0,80}DefaultCPU)"
        ),
        figures(requested_bytes=r"you tried to allocate SIZE"),
        resource="host",
        hints="ot enough memory|llocat",
    ),
    Dialect(
        "cublas",
        "any torch",
        "aten/src/ATen/cuda/Exceptions.h",
        re.compile(r"(?:CUDA error: )?CUBLAS_STATUS_ALLOC_FAILED"),
        hints="ALLOC",
    ),
    Dialect(
        "cudnn",
        "any torch",
        "aten/src/ATen/cudnn/Exceptions.h",
        re.compile(
            r"(?:cuDNN error: )?CUDNN_STATUS_(?:INTERNAL_ERROR_DEVICE_ALLOCATION|ALLOC)_FAILED"
            # cuDNN's search says this when no algorithm gets its workspace.
            r"|Unable to find a valid cuDNN algorithm to run convolution"
        ),
        hints="ALLOC|cuDNN algorithm",
    ),
    Dialect(
        "hip",
        "torch for ROCm",
        "c10/hip/HIPException.cpp",
        re.compile(r"HIP error: out of memory|hipErrorOutOfMemory"),
        hints="ut of memory|OutOfMemory",
    ),
    Dialect(
        "xpu",
        "SYCL, Level Zero",
        "unified-runtime",
        re.compile(r"(?:UR|PI)_(?:RESULT_)?ERROR_OUT_OF_(?:DEVICE_)?(?:MEMORY|RESOURCES)"),
        hints="OUT_OF",
    ),
)
