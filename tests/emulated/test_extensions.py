"""Code of the user's that calls CUDA itself: through ctypes, or C++ that is compiled with torch."""

from __future__ import annotations

import shutil

import pytest
from emulated_run import Watched
from weekly_rows import weekly

# What a linker needs of the CUDA runtime; none of it runs.
RUNTIME = """
int cudaMalloc(void **at, unsigned long size) { return 1; }
int cudaMemcpyAsync(void *to, void *from, unsigned long size, int way, void *on) { return 1; }
"""
CODE = """
#include <ATen/ATen.h>
#include <torch/library.h>
extern "C" int cudaMalloc(void **, size_t);
extern "C" int cudaMemcpyAsync(void *, const void *, size_t, int, void *);

at::Tensor twice(const at::Tensor &x) {
    static void *kept = nullptr;
    if (!kept) TORCH_CHECK(cudaMalloc(&kept, size_t(2) << 30) == 0);
    at::Tensor y = at::empty_like(x);
    TORCH_CHECK(cudaMemcpyAsync(y.data_ptr(), x.data_ptr(), x.nbytes(), 3, nullptr) == 0);
    return y.add_(x);
}
TORCH_LIBRARY(own, library) { library.def("twice", &twice); }
"""
SCRIPT = """
import subprocess, torch
from torch.utils.cpp_extension import load
major = torch.version.cuda.split(".")[0]
named = f"-Wl,-soname,libcudart.so.{major}"
subprocess.run(["cc", "-shared", "-fPIC", "runtime.c", named, "-o", "libcudart.so"], check=True)
load("own", ["own.cpp"], build_directory=".", is_python_module=False, extra_cflags=["-O0"],
     extra_ldflags=["-L.", "-lcudart"])
print(torch.ops.own.twice(torch.arange(6, device="cuda")).tolist())
held = torch.ops.own.twice(torch.ones(256 << 20, device="cuda"))
"""
CALLS = """
import ctypes, torch
held = torch.ones(512 << 20, device="cuda")
runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
kept = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(kept), ctypes.c_size_t(2 << 30)) == 0
print((torch.arange(6, device="cuda") * 2).tolist())
"""


@pytest.mark.parametrize("script", [pytest.param(CALLS, id="ctypes"), weekly(SCRIPT, id="C++")])
def test_code_that_calls_cuda_runs_and_its_memory_is_counted(watched: Watched, script: str) -> None:
    if script is SCRIPT and shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    (watched.folder / "runtime.c").write_text(RUNTIME)
    (watched.folder / "own.cpp").write_text(CODE)
    report, out, error = watched.run("RTX 4090", script)
    assert (report.exit_code, out) == (0, "[0, 2, 4, 6, 8, 10]\n"), error
    (rank,) = report.ranks
    assert report.device is not None and report.device.context_bytes is not None
    assert rank.peak_allocated_bytes >> 30 == 2
    assert rank.peak_device_bytes == (
        rank.peak_reserved_bytes + (2 << 30) + report.device.context_bytes
    )
