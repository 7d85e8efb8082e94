"""Build the stand-in libraries for an interpreter's torch, once, into a cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from oomdoctor.emulator import generate, values
from oomdoctor.emulator.interpreter import Interpreter
from oomdoctor.errors import machine_error
from oomdoctor.package_data import data_text

NATIVE = Path(__file__).with_name("native")
AUDIT = "liboomdoctor-audit.so"
COMMANDS = "bin"  # a folder of the stand-ins, for the PATH: nvidia-smi
_DEVICE = "libemugpu.so"
_FLAGS = ("-O2", "-fPIC", "-std=gnu11", "-fno-builtin-malloc")
# Architectures of a build that does not state them.
_USUAL_KERNELS = (70, 75, 80, 86, 90, 100, 120)
# Versions of a build that does not state them: (cuDNN, NCCL, cuBLAS), by CUDA's major version.
_USUAL = {12: (90100, 22005, 120100), 13: (92000, 22907, 130100)}


def built(interpreter: Interpreter, compiler: str, cache: Path) -> Path:
    """The folder of the stand-ins for an interpreter; built if the cache does not have them.

    Raises:
        OomDoctorError: they cannot be built.
    """
    torch = interpreter.torch
    assert torch is not None, "possible.reason_against was not asked"
    cpp = values.find_cpp_compiler(compiler)
    folder = cache / _key(interpreter, torch, cache, cpp)
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                _build(interpreter, torch, (compiler, cpp), made, folder)
                made.rename(folder)
    return folder


def without_values(interpreter: Interpreter, compiler: str, cache: Path) -> str | None:
    """Why the stand-ins for an interpreter know no values of small tensors; None if they do.

    Before they are built, it is what can be told without building.
    """
    torch = interpreter.torch
    assert torch is not None, "possible.reason_against was not asked"
    cpp = values.find_cpp_compiler(compiler)
    folder = cache / _key(interpreter, torch, cache, cpp)
    if folder.is_dir():
        return values.reason_against_values(folder)
    return values.missing_for_values(torch, cpp)


def _build(
    interpreter: Interpreter, torch: Path, compilers: tuple[str, str | None], out: Path, final: Path
) -> None:
    work = out.parent
    compiler, cpp = compilers
    libraries = generate.libraries(torch, interpreter.packages)
    (work / "versions.h").write_text(_versions(interpreter, torch))
    (work / "audit.h").write_text(_audit(libraries, final))
    compile_ = [compiler, *_FLAGS, f"-I{work}", f"-I{NATIVE}"]
    shared = [*compile_, "-shared"]
    device = [str(NATIVE / name) for name in generate.stand_ins()["sources"]["device"]]
    _run([*shared, "-o", str(out / _DEVICE), *device, f"-Wl,-soname,{_DEVICE}", "-lpthread"])
    plain = ["-nostdlib", "-fno-stack-protector", "-fno-builtin"]
    _run([*shared, *plain, "-o", str(out / AUDIT), str(NATIVE / "audit.c")])

    def make(library: generate.Library) -> None:
        _make_library(library, compile_, work, out)

    with ThreadPoolExecutor(2) as pool:
        computing = pool.submit(values.build, torch, NATIVE, cpp, work, out)
        list(pool.map(make, libraries))
        computing.result()
    (out / COMMANDS).mkdir()
    smi = ["-o", str(out / COMMANDS / "nvidia-smi"), str(NATIVE / "smi.c")]
    _run([*compile_, *smi, f"-L{out}", "-l:libnvidia-ml.so.1", "-Wl,-rpath,$ORIGIN/.."])
    # Triton links with -lcuda.
    (out / "libcuda.so").symlink_to("libcuda.so.1")


def _make_library(library: generate.Library, compile_: list[str], work: Path, out: Path) -> None:
    own: list[str] = []
    for source in generate.stand_ins()["sources"].get(library.name, ("small.c",)):
        target = work / f"{library.file}.{source}.o"
        define = f"-DLIB_{re.sub(r'[^a-zA-Z]', '_', library.name)}"
        _run([*compile_, define, "-c", str(NATIVE / source), "-o", str(target)])
        own.append(str(target))
    listing = _run(["nm", "--defined-only", *own])
    defined = {words[2] for line in listing.splitlines() if len(words := line.split()) == 3}
    stubs = work / f"{library.file}.stubs.c"
    stubs.write_text(generate.stubs(library, defined))
    script: list[str] = []
    if (text := generate.version_script(library)) is not None:
        path = work / f"{library.file}.map"
        path.write_text(text)
        script = [f"-Wl,--version-script={path}"]
    _run(
        [
            *(*compile_, "-w", "-fno-builtin", "-shared", "-o", str(out / library.file)),
            *(*own, str(stubs), *script, f"-Wl,-soname,{library.file}"),
            *(f"-L{out}", "-l:" + _DEVICE, "-ldl", "-Wl,-rpath,$ORIGIN"),
        ]
    )


def _audit(libraries: Iterable[generate.Library], folder: Path) -> str:
    names = {library.file: library.file for library in libraries} | {"libcuda.so": "libcuda.so.1"}
    rows = ", ".join(f'{{"{name}", "{folder}/{file}"}}' for name, file in names.items())
    return f"#define STAND_INS {rows}\n"


def _versions(interpreter: Interpreter, torch: Path) -> str:
    major, minor = (int(part) for part in (interpreter.cuda or "13.0").split(".")[:2])
    cudnn, nccl, cublas = _library_versions(torch, major)
    kernels, ptx = generate.architectures(torch)
    return (
        f"#define CUDA_MAJOR {major}\n"
        f"#define CUDA_VERSION {major * 1000 + minor * 10}\n"
        f"#define CUDNN_VERSION {cudnn}\n"
        f"#define NCCL_VERSION {nccl}\n"
        f"#define CUBLAS_VERSION {cublas}\n"
        f"#define KERNEL_ARCHITECTURES {', '.join(map(str, kernels or _USUAL_KERNELS))}\n"
        f"#define PTX_ARCHITECTURES {''.join(f'{number}, ' for number in ptx)}\n"
    )


def _library_versions(torch: Path, major: int) -> tuple[int, int, int]:
    """cuDNN's, NCCL's and cuBLAS's, as the libraries report them, from torch's requirements."""
    text = "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in torch.parent.glob("torch-*.dist-info/METADATA")
    )
    cudnn, nccl, cublas = _USUAL.get(major, _USUAL[max(_USUAL)])
    if found := re.search(r"nvidia-cudnn-cu\d+[ (]*==(\d+)\.(\d+)\.(\d+)", text):
        first, second, third = map(int, found.groups())
        cudnn = first * (10000 if first >= 9 else 1000) + second * 100 + third
    if found := re.search(r"nvidia-nccl-cu\d+[ (]*==(\d+)\.(\d+)\.(\d+)", text):
        first, second, third = map(int, found.groups())
        nccl = first * 10000 + second * 100 + third
    if found := re.search(r"nvidia-cublas(?:-cu\d+)?[ (]*[=<]=(\d+)\.(\d+)\.(\d+)", text):
        first, second, third = map(int, found.groups())
        cublas = first * 10000 + second * 100 + third
    return cudnn, nccl, cublas


def _key(interpreter: Interpreter, torch: Path, cache: Path, cpp: str | None) -> str:
    """What the stand-ins depend on: torch's build, the packages beside it, and our sources."""
    library = (torch / "lib" / "libtorch_cuda.so").stat()
    parts = [
        interpreter.torch_version or "",
        interpreter.machine,
        f"{torch} {cache} {cpp}",
        f"{library.st_size} {library.st_mtime_ns}",
        *sorted(p.name for folder in interpreter.packages for p in folder.glob("*.dist-info")),
    ]
    ours = [
        path.read_bytes() for path in sorted([*NATIVE.rglob("*.*"), *NATIVE.parent.glob("*.py")])
    ]
    ours.append(data_text("stand_ins.toml").encode())
    digest = hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *ours]))
    return f"torch-{interpreter.torch_version}-{digest.hexdigest()[:12]}"


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise machine_error(
            "emulator_build_failed",
            "The emulated GPU could not be built: "
            f"{shutil.which(command[0]) or command[0]} failed: {_first_error(done.stderr)}",
            hint="check the C compiler, or set CC to another one",
        )
    return done.stdout


def _first_error(text: str) -> str:
    lines = text.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
