"""Messages of our own making, in the shapes of each release, and their exact figures."""

from __future__ import annotations

import re
from dataclasses import asdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.explain.reading.parse import DIALECTS, parse_oom
from oomdoctor.explain.reading.printed_sizes import size_bytes

MIB, GIB = 1024**2, 1024**3


def gib(text: str) -> int:
    return round(Fraction(text) * GIB)


HINT = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
MODERN = {
    "requested_bytes": 30 * MIB,
    "capacity_bytes": gib("15.74"),
    "free_bytes": 12 * MIB,
    "process_bytes": gib("15.72"),
    "allocated_bytes": gib("14.11"),
    "reserved_unallocated_bytes": gib("1.25"),
    "other_processes_bytes": 0,  # the rest of 8.5 MiB is within the rounding of the figures
}
SHAPES = {
    "1.0 cached": (
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 7.80 GiB total "
        "capacity; 5.25 GiB already allocated; 6.50 MiB free; 410.00 MiB cached)",
        {
            "requested_bytes": gib("1.5"),
            "capacity_bytes": gib("7.80"),
            "allocated_bytes": gib("5.25"),
            "free_bytes": 13 * MIB // 2,
            "reserved_bytes": 410 * MIB,
        },
    ),
    "1.4 reserved": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 7.80 GiB total "
        "capacity; 0 bytes already allocated; 3.00 GiB free; 512 bytes reserved in total by "
        "PyTorch)",
        {
            "requested_bytes": 2 * GIB,
            "capacity_bytes": gib("7.80"),
            "allocated_bytes": 0,
            "free_bytes": 3 * GIB,
            "reserved_bytes": 512,
        },
    ),
    "1.8 allowed, 1.10 hint": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 24.00 MiB (GPU 0; "
        "31.75 GiB total capacity; 3.90 GiB already allocated; 27.10 GiB free; 4.00 GiB allowed; "
        "3.95 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
        "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory "
        "Management and PYTORCH_CUDA_ALLOC_CONF",
        {
            "requested_bytes": 24 * MIB,
            "capacity_bytes": gib("31.75"),
            "allocated_bytes": gib("3.90"),
            "free_bytes": gib("27.10"),
            "allowed_bytes": 4 * GIB,
            "reserved_bytes": gib("3.95"),
        },
    ),
    "2.1 misspelt": (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacty of 15.74 GiB "
        "of which 12.00 MiB is free. Including non-PyTorch memory, this process has 15.72 GiB "
        "memory in use. Of the allocated memory 14.11 GiB is allocated by PyTorch, and 1.25 GiB "
        "is reserved by PyTorch but unallocated.",
        MODERN,
    ),
    "others that are not listed": (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 15.74 GiB "
        "of which 12.00 MiB is free. Including non-PyTorch memory, this process has 15.71 GiB "
        "memory in use. Of the allocated memory 14.11 GiB is allocated by PyTorch, and 1.25 GiB "
        "is reserved by PyTorch but unallocated.",
        {
            **MODERN,
            "process_bytes": gib("15.71"),
            "other_processes_bytes": gib("15.74") - 12 * MIB - gib("15.71"),
        },
    ),
    "2.5 spelt right": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a "
        "total capacity of 15.74 GiB of which 12.00 MiB is free. Including non-PyTorch memory, "
        "this process has 15.72 GiB memory in use. Of the allocated memory 14.11 GiB is allocated "
        "by PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated." + HINT,
        MODERN,
    ),
    "2.3 cut after the card": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 MiB. GPU \0",
        {"requested_bytes": 30 * MIB},
    ),
    "private pools": (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 3 has a total capacity of 15.74 GiB "
        "of which 12.00 MiB is free. Including non-PyTorch memory, this process has 15.72 GiB "
        "memory in use. Of the allocated memory 14.11 GiB is allocated by PyTorch, with 96.00 MiB "
        "allocated in private pools (e.g., CUDA Graphs), and 1.25 GiB is reserved by PyTorch but "
        "unallocated.",
        {**MODERN, "private_pools_bytes": 96 * MIB},
    ),
    "a cap and other processes": (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 39.50 GiB "
        "of which 20.00 GiB is free. Process 4711 has 2.00 GiB memory in use. Process 42 has "
        "500.00 MiB memory in use. Including non-PyTorch memory, this process has 17.00 GiB memory "
        "in use. 16.00 GiB allowed; Of the allocated memory 15.90 GiB is allocated by PyTorch, and "
        "80.00 MiB is reserved by PyTorch but unallocated.",
        {
            "requested_bytes": 30 * MIB,
            "capacity_bytes": gib("39.50"),
            "free_bytes": 20 * GIB,
            "process_bytes": 17 * GIB,
            "allowed_bytes": 16 * GIB,
            "allocated_bytes": gib("15.90"),
            "reserved_unallocated_bytes": 80 * MIB,
            "other_processes_bytes": 2 * GIB + 500 * MIB,
        },
    ),
    "no process clause": (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 15.74 GiB "
        "of which 12.00 MiB is free. Of the allocated memory 14.11 GiB is allocated by PyTorch, "
        "and 1.25 GiB is reserved by PyTorch but unallocated.",
        {k: v for k, v in MODERN.items() if k not in ("process_bytes", "other_processes_bytes")},
    ),
    "underflow": (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 15.74 GiB "
        "of which 12.00 MiB is free. Including non-PyTorch memory, this process has "
        "17179869184.00 GiB memory in use. Of the allocated memory 14.11 GiB is allocated by "
        "PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated.",
        {k: v for k, v in MODERN.items() if k not in ("process_bytes", "other_processes_bytes")},
    ),
}


def figures(event):
    told = {name: value for name, value in asdict(event).items() if name.endswith("_bytes")}
    return {name: value for name, value in told.items() if value is not None}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_caching_allocator_of_each_release(shape):
    text, expected = SHAPES[shape]
    event = parse_oom(text, "backward")
    assert (event.dialect, event.phase) == ("cuda_caching_allocator", "backward")
    assert figures(event) == expected
    assert event.message.startswith("CUDA out of memory. Tried to allocate")
    assert "fragmentation" not in event.message


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        (
            "CPU out of memory. Tried to allocate 20.00 MiB. The CPU budget has a total capacity "
            "of 1.00 GiB of which 3.50 MiB is free. Of the allocated memory 1020.50 MiB is "
            "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
            "cpu_allocator",
            {
                "requested_bytes": 20 * MIB,
                "capacity_bytes": GIB,
                "free_bytes": 7 * MIB // 2,
                "allocated_bytes": 2041 * MIB // 2,
                "reserved_unallocated_bytes": 0,
            },
        ),
        (
            "[enforce fail at alloc_cpu.cpp:120] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 123456789012 bytes. Error code 12",
            "cpu_allocator",
            {"requested_bytes": 123456789012},
        ),
        (
            "DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.",
            "cpu_allocator",
            {"requested_bytes": 4096},
        ),
        (
            "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
            "Currently allocated     : 14.50 GiB\nRequested               : 2.00 GiB\n"
            "Device limit            : 15.74 GiB\nFree (according to CUDA): 12.00 MiB\n"
            "PyTorch limit (set by user-supplied memory fraction)\n"
            "                        : 17179869184.00 GiB",
            "cuda_malloc_async",
            {
                "allocated_bytes": gib("14.5"),
                "requested_bytes": 2 * GIB,
                "capacity_bytes": gib("15.74"),
                "free_bytes": 12 * MIB,
            },
        ),
        ("HIP out of memory. Tried to allocate 1.00 GiB. GPU 0", "hip", {"requested_bytes": GIB}),
        ("XPU out of memory. Tried to allocate 1.00 GiB. GPU 0", "xpu", {"requested_bytes": GIB}),
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might", "cuda_driver", {}),
        ("CUDA driver error: out of memory", "cuda_driver", {}),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`", "cublas", {}),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cudnn", {}),
        ("ncclUnhandledCudaError: Cuda failure 2 'out of memory'", "nccl", {}),
        (
            "Error out of memory at line 99 in file /src/csrc/pythonInterface.cpp",
            "bitsandbytes",
            {},
        ),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "triton", {}),
        (
            "cuda runtime error (2) : out of memory at /b/THCStorage.cu:58",
            "cuda_caching_allocator",
            {},
        ),
    ],
)
def test_other_dialects(text, dialect, expected):
    event = parse_oom(text)
    assert (event.dialect, event.phase) == (dialect, "unknown")
    assert figures(event) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RuntimeError: Expected all tensors to be on the same device",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456",
        "CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
        "the run was out of memory budget for notes",
    ],
)
def test_near_misses_are_not_out_of_memory(text):
    assert parse_oom(text) is None


def test_a_wrapped_and_coloured_message_of_a_rank_is_whole():
    text = (
        "[rank0]: \x1b[31mOutOfMemoryError\x1b[0m: CUDA out of memory. Tried to allocate 30.00 MiB."
        "\n[rank0]: GPU 0 has a total capacity of 15.74 GiB of which 12.00 MiB is free.\n"
        "[rank0]:   Including non-PyTorch memory, this process has\n[rank0]: 15.72 GiB memory in "
        "use. Of the allocated memory 14.11 GiB is allocated by PyTorch,\n[rank0]: and 1.25 GiB is "
        "reserved by PyTorch but unallocated."
    )
    assert figures(parse_oom(text)) == MODERN


def test_the_first_of_several_messages_keeps_to_its_own_figures():
    text = (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0\n"
        "CUDA out of memory. Tried to allocate 99.00 MiB. GPU 1 has a total capacity of 1.00 GiB "
        "of which 0 bytes is free."
    )
    assert figures(parse_oom(text)) == {"requested_bytes": 30 * MIB}


def listed(other: str, free: str) -> str:
    return (
        f"CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 40.00 GiB "
        f"of which {free} is free. {other} Of the allocated memory 19.00 GiB is allocated by "
        "PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated."
    )


def test_in_a_container_the_listed_process_may_be_the_speaker():
    own = listed("Process 7 has 20.00 GiB memory in use.", "20.00 GiB")
    assert parse_oom(own).other_processes_bytes == 0
    two = listed(
        "Process 7 has 20.00 GiB memory in use. Process 8 has 15.00 GiB memory in use.", "5.00 GiB"
    )
    assert parse_oom(two).other_processes_bytes == 15 * GIB
    foreign = listed("Process 8 has 19.00 GiB memory in use.", "1.00 GiB")
    assert parse_oom(foreign).other_processes_bytes == 19 * GIB


def test_figures_round_to_the_nearest_byte():
    assert size_bytes("23.69 GiB") == 25_436_943_811  # 25436943810.56
    assert size_bytes("0.10 KiB") == 102  # 102.4
    assert size_bytes("1.5 bytes") == 2
    assert size_bytes("none") is None


@given(st.integers(0, 10**6), st.integers(0, 99), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_every_figure_is_its_printed_value_times_its_unit(whole, hundredths, unit):
    factor = {"KiB": 1024, "MiB": MIB, "GiB": GIB}[unit]
    printed = Fraction(100 * whole + hundredths, 100) * factor
    read = size_bytes(f"{whole}.{hundredths:02d} {unit}")
    assert abs(read - printed) <= Fraction(1, 2)


def test_every_row_of_the_table_is_complete():
    for dialect in DIALECTS:
        assert dialect.versions
        assert dialect.source
        for field, pattern in (*dialect.figures.items(), *dialect.beside.items()):
            assert field.endswith("_bytes")
            # One group with a size, or its number and its unit.
            assert re.compile(pattern).groups in (1, 2)
