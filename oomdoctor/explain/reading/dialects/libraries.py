"""Out-of-memory messages of libraries around PyTorch, other frameworks and inference servers."""

from __future__ import annotations

import re

from oomdoctor.explain.reading.dialects.dialect import Dialect, figures

LIBRARIES: tuple[Dialect, ...] = (
    Dialect(
        "nccl",
        "any NCCL",
        "nccl/src/include/checks.h",
        re.compile(r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:malloc|calloc)"),
        hints="ut of memory|CUDA [mc]alloc",
    ),
    Dialect(
        "nccl",
        "any NCCL",
        "nccl/src/misc/shmutils.cc",
        re.compile(r"(?:E|e)rror while (?:creating|attaching to) shared memory segment /dev/shm"),
        resource="shm",
        hints="memory segment",
    ),
    Dialect(
        # For paged states and workspaces; the library prints this and exits.
        "bitsandbytes",
        "any bitsandbytes",
        "bitsandbytes/csrc/common.h",
        re.compile(r"Error out of memory at line \d+ in file"),
        hints="ut of memory",
    ),
    Dialect(
        "triton",
        "any Triton",
        "triton/third_party/nvidia/backend/driver.c",
        re.compile(r"Triton Error \[CUDA\]: out of memory"),
        hints="ut of memory",
    ),
    Dialect(
        "llamacpp",
        "llama.cpp",
        "ggml/src/ggml-cuda/ggml-cuda.cu",
        re.compile(r"allocating [\d.]+ MiB on device \d+: (?:cuda|hip|musa)Malloc failed"),
        figures(requested_bytes=r"allocating SIZE on device"),
        hints="llocat",
    ),
    Dialect(
        "llamacpp",
        "llama.cpp",
        "ggml/src/ggml-alloc.c",
        re.compile(
            r"(?:failed|unable) to allocate (?:CUDA|ROCm|Vulkan|Metal|SYCL)\d* buffer"
            r"|llama runner process has terminated: cudaMalloc failed"
        ),
        figures(requested_bytes=r"buffer of size BYTES"),
        hints="llocat|ut of memory",
    ),
    Dialect(
        "llamacpp",
        "llama.cpp",
        "ggml/src/ggml-cuda/ggml-cuda.cu",
        re.compile(r"CUDA error: out of memory\s+(?:current )?device: \d+, in function"),
        hints="ut of memory",
    ),
    Dialect(
        "llamacpp",
        "ollama",
        "ollama/server/sched.go",
        re.compile(r"model requires more system memory \("),
        figures(
            requested_bytes=r"more system memory \(SIZE\)", free_bytes=r"than is available \(SIZE\)"
        ),
        resource="host",
        hints="system memory",
    ),
    Dialect(
        "vllm",
        "vLLM 0.2 and later",
        "vllm/v1/core/kv_cache_utils.py",
        re.compile(r"No available memory for the cache blocks"),
        lived_on=True,
        phase="init",
        hints="cache blocks",
    ),
    Dialect(
        "vllm",
        "vLLM 0.8 and later",
        "vllm/v1/core/kv_cache_utils.py",
        re.compile(r"To serve at least one request with the model'?s'?s? max seq len"),
        lived_on=True,
        phase="init",
        hints="max seq len",
    ),
    Dialect(
        "vllm",
        "vLLM 0.3 and later",
        "vllm/worker/worker.py",
        re.compile(r"max seq len \(\d+\) is larger than the maximum number of tokens that can be"),
        lived_on=True,
        phase="init",
        hints="max seq len",
    ),
    Dialect(
        "vllm",
        "vLLM 0.8 and later",
        "vllm/v1/worker/gpu_worker.py",
        re.compile(
            r"Free memory on device.{0,80}on startup is less than desired GPU memory utilization"
        ),
        phase="init",
        hints="Free memory on",
    ),
    Dialect(
        "vllm",
        "vLLM 0.8 and later",
        "vllm/v1/worker/gpu_model_runner.py",
        re.compile(r"CUDA out of memory occurred when warming up sampler"),
        phase="init",
        hints="ut of memory",
    ),
    Dialect(
        "vllm",
        "SGLang",
        "sglang/srt/model_executor/model_runner.py",
        re.compile(
            r"Not enough memory(?:\. Please try (?:to increase|increasing) --mem-fraction"
            r"| to handle \d+ prefill tokens)"
        ),
        phase="init",
        hints="ot enough memory",
    ),
    Dialect(
        "tpu",
        "XLA for TPUs",
        "xla/service/tpu",
        re.compile(r"Ran out of memory in memory space (?:hbm|vmem|smem)"),
        figures(capacity_bytes=r"Used [\d.]+[KMGT] of SHORT hbm"),
        hints="ut of memory",
    ),
    Dialect(
        "tpu",
        "XLA for TPUs",
        "xla/pjrt",
        re.compile(r"Attempting to (?:allocate|reserve) [\d.]+[KMGT]\b.{0,60}not possible"),
        figures(
            requested_bytes=r"Attempting to (?:allocate|reserve) SHORT",
            free_bytes=r"There are SHORT free",
        ),
        hints="Attempting to",
    ),
    Dialect(
        "xla",
        "JAX, XLA",
        "xla/pjrt",
        re.compile(
            r"RESOURCE_EXHAUSTED: (?:XLA:GPU )?(?:.{0,80}?[:.] )?"
            r"(?:Out of memory|Failed to allocate request|Allocator )"
        ),
        figures(
            requested_bytes=r"(?:allocate|allocating|request for)(?: request for)? SIZE",
        ),
        hints="EXHAUSTED",
    ),
    Dialect(
        "tensorflow",
        "TensorFlow 1 and 2",
        "tensorflow/core/framework/op_kernel.cc",
        re.compile(r"OOM when allocating tensor"),
        prints_shape=True,
        on_host=r"by allocator (?:mkl)?cpu|device:CPU",
        hints="OOM",
    ),
    Dialect(
        "tensorflow",
        "TensorFlow 1 and 2",
        "tsl/framework/bfc_allocator.cc",
        re.compile(r"Allocator \(\S+\) ran out of memory trying to allocate"),
        figures(requested_bytes=r"trying to allocate SIZE"),
        on_host=r"by allocator (?:mkl)?cpu|device:CPU",
        hints="ran out",
    ),
    Dialect(
        "tensorflow",
        "TensorFlow, XLA",
        "stream_executor/cuda/cuda_driver.cc",
        re.compile(
            r"failed to allocate [\d.]+[KMGT]?i?B? \(\d+ bytes\) from device: CUDA_ERROR_OUT"
        ),
        figures(requested_bytes=r"\(SIZE\) from device"),
        on_host=r"by allocator (?:mkl)?cpu|device:CPU",
        hints="llocat",
    ),
    Dialect(
        "cuda_driver",
        "CuPy",
        "cupy/cuda/memory.pyx",
        re.compile(r"OutOfMemoryError: Out of memory allocating [\d,]+ bytes"),
        figures(requested_bytes=r"allocating BYTES bytes"),
        hints="ut of memory",
    ),
    Dialect(
        "cuda_driver",
        "PaddlePaddle 1.5 and later",
        "paddle/fluid/memory/allocation/cuda_allocator.cc",
        re.compile(r"Out of memory error on GPU (?:Virtual Memory )?\d"),
        figures(
            requested_bytes=r"Cannot allocate SIZE memory",
            allocated_bytes=r"SIZE memory has been allocated",
            free_bytes=r"available memory is only SIZE",
        ),
        hints="ut of memory",
        binary_units=True,
    ),
    Dialect(
        "cuda_driver",
        "ONNX Runtime",
        "onnxruntime/core/framework/bfc_arena.cc",
        re.compile(
            r"(?:\[ONNXRuntimeError\].{0,200}|BFCArena::AllocateRawInternal.{0,200})"
            r"Failed to allocate memory for requested buffer of size"
        ),
        figures(requested_bytes=r"buffer of size BYTES"),
        hints="llocat",
    ),
    Dialect(
        "cuda_driver",
        "any torch",
        "c10/cuda/CUDAException.cpp",
        re.compile(
            r"CUDA (?:driver |runtime )?[Ee]rror(?: \d+)?: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
            r"|(?<!\d: )cudaMalloc failed: out of memory"
            r"|cudaErrorMemoryAllocation|\bError 2: out of memory|out_of_memory: CUDA error"
        ),
        hints="ut of memory|OUT_OF|out_of_memory|cudaErrorMem|Error 2:",
    ),
)
