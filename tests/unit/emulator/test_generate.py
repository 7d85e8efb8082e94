"""Which stand-ins are made, and what is in them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oomdoctor.emulator import elf
from oomdoctor.emulator.generate import (
    CUDA_LIBRARY,
    Library,
    answers,
    architectures,
    libraries,
    stubs,
    version_script,
)

_NVRTC = ("-Wl,--no-as-needed", "-l:libnvrtc.so.13")


def _compile(folder: Path, name: str, code: str, *options: str) -> Path:
    source = folder / f"{name}.c"
    source.write_text(code)
    out = folder / name
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(out), str(source), f"-Wl,-soname,{name}", *options],
        check=True,
    )
    return out


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A torch whose only library leaves a versioned and an unversioned symbol open."""
    (tmp_path / "map").write_text("libcudart.so.12 { global: *; };")
    script = f"-Wl,--version-script={tmp_path / 'map'}"
    _compile(tmp_path, "libcudart.so.12", "int cudaMalloc(void) { return 0; }", script)
    _compile(tmp_path, "libnccl.so.2", "int ncclGetVersion(void) { return 0; }")
    lib = tmp_path / "torch" / "lib"
    lib.mkdir(parents=True)
    code = (
        "int cudaMalloc(void); int ncclGetVersion(void);"
        'const char *name = "x\\0cuMemCreate";'
        "int f(void) { return cudaMalloc() + ncclGetVersion(); }"
    )
    links = (f"-L{tmp_path}", "-l:libcudart.so.12", "-l:libnccl.so.2")
    _compile(lib, "libtorch_cuda.so", code, *links)
    return tmp_path / "torch"


def test_an_elf_library_tells_what_it_wants(fake_torch: Path) -> None:
    path = fake_torch / "lib" / "libtorch_cuda.so"
    assert set(elf.needed(path)) >= {"libcudart.so.12", "libnccl.so.2"}
    wanted = {symbol.name: symbol for symbol in elf.wanted(path)}
    assert wanted["cudaMalloc"] == elf.Wanted("cudaMalloc", "libcudart.so.12", "libcudart.so.12")
    assert wanted["ncclGetVersion"].version is None


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\0" * 90]
)
def test_what_is_no_library_wants_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert elf.needed(path) == ()
    assert elf.wanted(path) == ()


def test_libraries_and_symbols_are_those_that_torch_wants(fake_torch: Path) -> None:
    found = {library.file: library for library in libraries(fake_torch, [])}
    assert set(found) == {"libcuda.so.1", "libcudart.so.12", "libnccl.so.2", "libnvidia-ml.so.1"}
    assert found["libcudart.so.12"].symbols["libcudart.so.12"] == {"cudaMalloc"}
    assert found["libnccl.so.2"].symbols[None] == {"ncclGetVersion"}
    assert "cuMemCreate" in found["libcuda.so.1"].symbols[None]


def test_packages_that_load_cuda_count_too(fake_torch: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "flash_attn"
    package.mkdir(parents=True)
    _compile(tmp_path, "libcufft.so.11", "int cufftExecC2C(void) { return 0; }")
    code = "int cufftExecC2C(void); int g(void) { return cufftExecC2C(); }"
    _compile(package, "ext.so", code, f"-L{tmp_path}", "-l:libcufft.so.11")
    found = {library.file: library for library in libraries(fake_torch, [tmp_path / "site"])}
    assert found["libcufft.so.11"].symbols[None] == {"cufftExecC2C"}


def test_a_package_may_leave_symbols_to_libraries_that_others_load(
    fake_torch: Path, tmp_path: Path
) -> None:
    """Transformer Engine loads NVRTC from Python, and looks functions of the driver up by name."""
    package = tmp_path / "site" / "engine"
    package.mkdir(parents=True)
    _compile(tmp_path, "libnvrtc.so.13", "int nvrtcVersion(void) { return 0; }")
    _compile(package, "binding.so", "int f(void) { return 0; }", f"-L{tmp_path}", *_NVRTC)
    code = (
        "int cudaMalloc(void); int nvrtcGetNumSupportedArchs(void); "
        'const char *name = "x\\0cuStreamGetCtx";'
        "int f(void) { return cudaMalloc() + nvrtcGetNumSupportedArchs(); }"
    )
    _compile(package, "engine.so", code, f"-L{tmp_path}", "-l:libcudart.so.12")
    found = {library.file: library for library in libraries(fake_torch, [tmp_path / "site"])}
    assert "nvrtcGetNumSupportedArchs" in found["libnvrtc.so.13"].symbols[None]
    assert "cuStreamGetCtx" in found["libcuda.so.1"].symbols[None]


def test_a_default_succeeds_or_says_not_supported() -> None:
    runtime = Library("cudart", "libcudart.so.12", {"libcudart.so.12": {"cudaA", "cudaB"}})
    assert 'emu_default("cudaA", &seen, 0)' in stubs(runtime, {"cudaB"})
    assert "cudaB" not in stubs(runtime, {"cudaB"})
    assert ", 3)" in stubs(Library("nvidia-ml", "libnvidia-ml.so.1", {None: {"nvmlA"}}), set())


def test_a_default_that_answers_through_a_pointer_fails() -> None:
    """It could only leave its caller with what happened to be in memory."""
    solver = Library("cusolver", "libcusolver.so.12", {None: {"cusolverDnSgesvd_bufferSize"}})
    assert ", 9)" in stubs(solver, set())
    for name in (
        *("cudnnGetNewWorkspaceSize", "cudnnCreateNewDescriptor", "cudnnFindBestAlgorithm"),
        *("cusparseSpNew_bufferSize", "cusparseXnewNnz", "cufftGetSize", "cublasLtNewCreate"),
    ):
        assert answers(name), name
    for name in ("cudnnRNNForward", "cublasSgemm_v2", "cusparseSpMM", "cublasGetVectorAsync"):
        assert not answers(name), name


def test_the_version_of_most_symbols_takes_the_rest() -> None:
    library = Library("x", "libx.so", {"V1": {"a"}, "V2": {"b", "c"}, None: {"d"}})
    assert version_script(library) == "V1 { global: a; };\nV2 { global: *; };\n"
    assert version_script(Library("x", "libx.so", {None: {"d"}})) is None


@pytest.mark.parametrize(
    ("file", "matches"),
    [
        ("libcudart.so.13", True),
        ("libcudart-d0da41ae.so.11.0", True),
        ("libcusparseLt-f80c68d1.so.0", True),
        ("libcudnn_graph.so.9", True),
        ("libcuda.so.1", True),
        ("libc.so.6", False),
        ("libtorch_cuda.so", False),
        ("libc10_cuda.so", False),
    ],
)
def test_cuda_libraries_are_known_by_name(file: str, matches: bool) -> None:
    assert (CUDA_LIBRARY.fullmatch(file) is not None) == matches


def test_architectures_are_read_from_torch_whatever_stands_before_them(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    data = b"sm_01\0 x ipc_hsm_70 sm_86 sm_120 compute_120\0\0sm_50\0"
    (tmp_path / "lib" / "libtorch_python.so").write_bytes(data)
    assert architectures(tmp_path) == ([70, 86, 120], [120])
