"""Build the library that computes small tensors, against the headers of the installed torch.

It is optional: without a C++ compiler, or where torch's headers are not those expected, emulation
works as well, and the values of all tensors are unknown.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from oomdoctor.emulator.compilers import Compilers, first_error

LIBRARY = "libemuvalues.so"
_REASON = "values-reason"
_SOURCES = (
    *("values", "values_tensors", "values_compute", "values_rules", "values_memory"),
    "values_calls",
)
# torch 2.12 needs C++20; older compilers have only C++17, which is enough for older torch.
_STANDARDS = ("c++20", "c++17")
# torch's classes have more fields without NDEBUG.
_FLAGS = ("-O1", "-DNDEBUG", "-fPIC", "-w", "-fvisibility=hidden", "-shared")
_TIMEOUT_S = 600


def find_cpp_compiler(c_compiler: str) -> str | None:
    """The C++ compiler that goes with a C compiler, or else the first on the PATH."""
    path = Path(c_compiler)
    beside = re.sub(r"gcc|cc$", "g++", re.sub("clang", "clang++", path.name))
    names = [str(path.with_name(beside)), "c++", "g++", "clang++"]
    return next((program for name in names if (program := shutil.which(name))), None)


def build(
    torch: Path, native: Path, compiler: str | None, compilers: Compilers, work: Path, out: Path
) -> None:
    """Build into `out`, where the device's library is; or write down why it cannot be."""
    reason = missing_for_values(torch, compiler)
    if reason is None and compiler is not None:
        reason = _compile(torch, native, compiler, compilers, work, out)
    if reason is not None:
        (out / _REASON).write_text(reason, encoding="utf-8")


def missing_for_values(torch: Path, compiler: str | None) -> str | None:
    """What is missing to compute values for a torch; None if nothing is known to be missing."""
    if compiler is None:
        return "there is no C++ compiler"
    if not (torch / "include" / "ATen" / "record_function.h").is_file():
        return "torch came without its C++ headers"
    return None


def reason_against_values(libraries: Path) -> str | None:
    """Why the stand-ins in a folder do not compute values; None if they do."""
    path = libraries / _REASON
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _compile(
    torch: Path, native: Path, compiler: str, compilers: Compilers, work: Path, out: Path
) -> str | None:
    source = work / "all_values.cpp"  # one compilation: torch's headers take most of the time
    source.write_text("".join(f'#include "{native / name}.cpp"\n' for name in _SOURCES))
    command = [
        *(compiler, *_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(_new_strings(torch))}"),
        *(f"-I{native}", f"-I{native / 'cuda_names'}", "-isystem", str(torch / "include")),
        *(str(source), "-o", str(out / LIBRARY)),
        *(f"-L{out}", "-lemugpu", f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10", "-lc10_cuda"),
        "-Wl,-rpath,$ORIGIN",
    ]
    message = ""
    for standard in _STANDARDS:
        try:
            done = compilers.run([*command, f"-std={standard}"], _TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{compiler} failed: {error}"
        if done.returncode == 0:
            return None
        message = message or first_error(done.stderr)
    (out / LIBRARY).unlink(missing_ok=True)
    return f"{compiler} failed: {message}"


def _new_strings(torch: Path) -> bool:
    """Whether torch was built with the C++11 ABI of libstdc++."""
    data = (torch / "lib" / "libc10.so").read_bytes()
    return re.search(rb"_ZN3c10\w*__cxx11", data) is not None
