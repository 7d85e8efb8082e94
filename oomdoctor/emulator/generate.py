"""Which stand-in libraries an installed torch needs, and C code for what is not written by hand.

Names and symbol versions are read from the libraries of torch, and from those of other packages
that load CUDA libraries. A symbol that no source in `native/` defines gets a default: it returns
success, or for NVML "not supported", and does nothing.
"""

from __future__ import annotations

import mmap
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from oomdoctor.emulator import elf
from oomdoctor.package_data import data_of

CUDA_LIBRARY = re.compile(
    r"lib(cudart|cuda|nvidia-ml|cublas|cublasLt|cudnn\w*|cusparse|cusparseLt|cusolver|cusolverMg"
    r"|cufft|cufftw|curand|cufile|cufile_rdma|cupti|nvrtc|nccl|nvshmem_host|nvJitLink|nvToolsExt)"
    r"(-[0-9a-f]{6,})?\.so(\.[\d.]+)?"
)
# Loaded by name at run time, so no library lists them.
_ALWAYS = {"cuda": "libcuda.so.1", "nvidia-ml": "libnvidia-ml.so.1"}
_NOT_SUPPORTED = {"nvidia-ml": 3}
# Functions that answer through pointers, of libraries that have a code for "not supported".
_ANSWERS = re.compile(
    r"cudnn(?:Get|Find|Create)\w+|cufft(?:Get|Create|Make|XtMake|Estimate)\w*|curand(?:Get|Create)\w+"
    r"|cusolver\w*?(?:Create|Get)\w*|cusparse(?:Lt)?(?:\w*Get|Create(?!Identity)|\w+Init)\w*"
    r"|cublas(?:Lt)?(?:Get(?!Vector|Matrix)|\w*Create|\w*GetHeuristic)\w*"
    r"|\w+(?:[bB]ufferSize(?:Ext)?|Sizes?\d?(?:_v\d+)?|Nnz|_zeroPivot|_workEstimation|_createDescr)"
)
_SMALL = 64 << 20  # bytes of a library of torch that is searched for names of driver functions
_DRIVER_NAME = re.compile(rb"\0((?:cu[A-Z]|nvml[A-Z])\w{3,60})(?=\0)")


@cache
def stand_ins() -> dict[str, Any]:
    """The facts of the libraries that are not read from a torch, by name."""
    return dict(data_of("stand_ins.toml"))


@dataclass(slots=True)
class Library:
    """A stand-in: `file` is its name, and `symbols` its defaults, by symbol version."""

    name: str
    file: str
    symbols: dict[str | None, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def version(self) -> str | None:
        """The symbol version of what is written by hand: the one that most symbols have."""
        versions = [v for v in self.symbols if v is not None]
        return max(versions, key=lambda v: len(self.symbols[v]), default=None)


def libraries(torch: Path, packages: Iterable[Path]) -> list[Library]:
    """The stand-ins that a torch and the packages beside it need."""
    by_file: dict[str, Library] = {f: Library(n, f) for n, f in _ALWAYS.items()}
    unversioned: set[str] = set()
    looking_up: list[Path] = []
    for binary in _binaries(torch, packages):
        files = [match for name in elf.needed(binary) if (match := CUDA_LIBRARY.fullmatch(name))]
        is_torch = binary.is_relative_to(torch)
        if not files and not is_torch:
            continue
        if not is_torch or 0 < binary.stat().st_size < _SMALL:
            looking_up.append(binary)
        for file in files:
            by_file.setdefault(file[0], Library(file[1], file[0]))
        for symbol in elf.wanted(binary):
            if symbol.library in by_file and symbol.version is not None:
                by_file[symbol.library].symbols[symbol.version].add(symbol.name)
            elif symbol.version is None:
                unversioned.add(symbol.name)
    # The library need not be one that the binary lists: Python may have loaded it before.
    for library in by_file.values():
        if prefix := stand_ins()["prefixes"].get(library.name):
            library.symbols[None] |= {name for name in unversioned if re.match(prefix, name)}
    driver, nvml = by_file[_ALWAYS["cuda"]], by_file[_ALWAYS["nvidia-ml"]]
    for name in _named(looking_up, packages):
        (nvml if name.startswith("nvml") else driver).symbols[None].add(name)
    return sorted(by_file.values(), key=lambda library: library.file)


def stubs(library: Library, own: set[str]) -> str:
    """C code of the defaults of a library; `own` are the symbols that it has already."""
    names = sorted(set().union(*library.symbols.values()) - own) if library.symbols else []
    lines = [
        f'long {name}(void) {{ static int seen; return emu_default("{name}", &seen, '
        f"{_default_code(library, name)}); }}"
        for name in names
    ]
    return "\n".join(["extern long emu_default(const char *, int *, long);", *lines, ""])


def answers(name: str) -> bool:
    """Whether a function answers through a pointer to memory of the host, by its name."""
    return _ANSWERS.fullmatch(name) is not None


def _default_code(library: Library, name: str) -> int:
    facts = stand_ins()
    if name in facts["fails"]:
        return int(facts["fails"][name])
    if library.name in facts["unanswered"]:
        return int(facts["unanswered"][library.name]) if answers(name) else 0
    return _NOT_SUPPORTED.get(library.name, 0)


def version_script(library: Library) -> str | None:
    """The linker's version script; None if no symbol has a version."""
    main = library.version
    if main is None:
        return None
    others = {v: s for v, s in library.symbols.items() if v is not None and v != main}
    nodes = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(others[version]))} }};"
        for version in sorted(others)
    ]
    return "\n".join([*nodes, f"{main} {{ global: *; }};", ""])


def architectures(torch: Path) -> tuple[list[int], list[int]]:
    """The compute capabilities (86 for 8.6) that torch has kernels for, and those with PTX."""
    path = torch / "lib" / "libtorch_python.so"
    # What stands before the text varies: compilers share the ends of strings.
    pattern = re.compile(rb"(sm_\d+[a-z]?(?: (?:sm|compute)_\d+[a-z]?)*)\0")
    texts = _texts(path, pattern)
    words = max(texts, key=len, default="").split()
    number = {word: int(re.sub(r"\D", "", word)) for word in words}
    kernels = [number[word] for word in words if word.startswith("sm_")]
    return kernels, [number[word] for word in words if word.startswith("compute_")]


def _texts(path: Path, pattern: re.Pattern[bytes]) -> list[str]:
    """What the first group of an expression matches in a binary."""
    with path.open("rb") as file:
        # Not closed by hand: where Ctrl-C stops the search, that would fail (BufferError).
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return [match[1].decode() for match in pattern.finditer(data)]


def _binaries(torch: Path, packages: Iterable[Path]) -> Iterator[Path]:
    yield from sorted((torch / "lib").glob("*.so*"))
    for folder in packages:
        for path in folder.rglob("*.so*"):
            inside = path.relative_to(folder).parts
            if inside[0] not in ("nvidia", "torch") and path.is_file():
                yield path


def _named(binaries: Iterable[Path], packages: Iterable[Path]) -> set[str]:
    """Functions of the driver and of NVML that are looked up by name at run time."""
    names: set[str] = set()
    for path in binaries:
        names |= set(_texts(path, _DRIVER_NAME))
    for folder in packages:
        for source in folder.glob("triton/backends/nvidia/*.c"):
            names |= set(re.findall(r"\b(cu[A-Z]\w+)\b", source.read_text(errors="replace")))
        if (folder / "pynvml.py").is_file():
            text = (folder / "pynvml.py").read_text(errors="replace")
            names |= set(re.findall(r"\"(nvml[A-Z]\w+)\"", text))
    return {name for name in names if not re.match("cuFile|cupti|cuRAND|cuBLAS", name)}
