"""Build the stand-in libraries for an interpreter's torch, once, into a cache.

    emulator/torch-VERSION-KEY   a build, with the digests of its files
    emulator/keys                which build is for which interpreter and packages
    emulator/lock                held by who builds

What is loaded into a command is checked first: the cache belongs to the user alone, and the files
are those that were built.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from oomdoctor.emulator import generate, values
from oomdoctor.emulator.compilers import Compilers, first_error
from oomdoctor.emulator.interpreter import Interpreter
from oomdoctor.errors import machine_error
from oomdoctor.package_data import data_text
from oomdoctor.private_folders import made_private, remove

NATIVE = Path(__file__).with_name("native")
AUDIT = "liboomdoctor-audit.so"
COMMANDS = "bin"  # a folder of the stand-ins, for the PATH: nvidia-smi
_DEVICE = "libemugpu.so"
_DIGESTS = "digests.json"
_MOST_BUILDS = 4
_COMPILER = "check the C compiler, or set CC to another one"
_SPACE = "free some space, or set XDG_CACHE_HOME to a folder with space"
_BUILD = re.compile(r"torch-[^/\s]+-[0-9a-f]{12}")
_FLAGS = ("-O2", "-fPIC", "-std=gnu11", "-fno-builtin-malloc")
# Architectures of a build that does not state them.
_USUAL_KERNELS = (70, 75, 80, 86, 90, 100, 120)
# Versions of a build that does not state them: (cuDNN, NCCL, cuBLAS), by CUDA's major version.
_USUAL = {12: (90100, 22005, 120100), 13: (92000, 22907, 130100)}


def built(
    interpreter: Interpreter,
    compiler: str,
    cache: Path,
    on_build: Callable[[], None] = lambda: None,
) -> Path:
    """The folder of the stand-ins for an interpreter; built if the cache does not have them whole.

    `on_build` is called before they are built. Builds that were not used for long are deleted.

    Raises:
        OomDoctorError: they cannot be built.
        OSError: the cache cannot be written, or others could write there.
    """
    torch = interpreter.torch
    assert torch is not None, "reason_against was not asked"
    cpp = values.find_cpp_compiler(compiler)
    if made_private(cache):
        for part in cache.iterdir():
            remove(part)
    folder = cache / _key(interpreter, torch, cache, cpp)
    if _is_whole(folder):
        with contextlib.suppress(OSError):  # a cache that can only be read will do
            os.utime(folder)
        return folder
    with _locked(cache / "lock", on_build):
        if not _is_whole(folder):
            on_build()
            for left in (folder, *cache.glob("tmp*")):  # of builds that were killed
                remove(left)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                compilers = Compilers(Path(scratch))
                with compilers.ending():
                    _build(interpreter, torch, (compiler, cpp), compilers, made, folder)
                (made / _DIGESTS).write_text(json.dumps(_digests(made)))
                made.rename(folder)
            _delete_old(cache)
    return folder


def _delete_old(cache: Path) -> None:
    """Delete builds but those used last, and the notes of builds that are gone."""
    used = sorted(cache.glob("torch-*"), key=lambda folder: folder.stat().st_mtime)
    for old in used[:-_MOST_BUILDS]:
        remove(old)
    for note in (cache / "keys").glob("*"):
        key = _noted(note)
        if key is None or not (cache / key).is_dir():
            remove(note)


def _noted(note: Path) -> str | None:
    """The name of a build in a note; None without a note, or if a full disk left half of it."""
    try:
        key = note.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return key if _BUILD.fullmatch(key) else None


def _is_whole(folder: Path) -> bool:
    """Whether a build is there with the files that were made, and nothing else."""
    if folder.is_symlink():
        return False
    try:
        return bool(json.loads((folder / _DIGESTS).read_text()) == _digests(folder))
    except (OSError, ValueError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != _DIGESTS
    }


def without_values(interpreter: Interpreter, compiler: str, cache: Path) -> str | None:
    """Why the stand-ins for an interpreter know no values of small tensors; None if they do.

    Before they are built, it is what can be told without building.
    """
    torch = interpreter.torch
    assert torch is not None, "reason_against was not asked"
    cpp = values.find_cpp_compiler(compiler)
    if cache.is_dir() and _is_whole(folder := cache / _key(interpreter, torch, cache, cpp)):
        return values.reason_against_values(folder)
    return values.missing_for_values(torch, cpp)


def _build(
    interpreter: Interpreter,
    torch: Path,
    names: tuple[str, str | None],
    compilers: Compilers,
    out: Path,
    final: Path,
) -> None:
    work = out.parent
    compiler, cpp = names
    libraries = generate.libraries(torch, interpreter.packages)
    (work / "versions.h").write_text(_versions(interpreter, torch))
    files = {library.file: library.file for library in libraries} | {"libcuda.so": "libcuda.so.1"}
    rows = ", ".join(f'{{"{name}", "{final}/{file}"}}' for name, file in files.items())
    (work / "audit.h").write_text(f"#define STAND_INS {rows}\n")
    compile_ = [compiler, *_FLAGS, f"-I{work}", f"-I{NATIVE}"]
    shared = [*compile_, "-shared"]
    device = [str(NATIVE / name) for name in generate.stand_ins()["sources"]["device"]]
    device += [f"-Wl,-soname,{_DEVICE}", "-lpthread"]
    _run(compilers, [*shared, "-o", str(out / _DEVICE), *device])
    plain = ["-nostdlib", "-fno-stack-protector", "-fno-builtin"]
    _run(compilers, [*shared, *plain, "-o", str(out / AUDIT), str(NATIVE / "audit.c")])

    make = partial(_make_library, compilers=compilers, compile_=compile_, work=work, out=out)
    # Inside of the pool, which waits for its threads when it is left.
    with ThreadPoolExecutor(2) as pool, compilers.ending():
        computing = pool.submit(values.build, torch, NATIVE, cpp, compilers, work, out)
        list(pool.map(make, libraries))
        computing.result()
    (out / COMMANDS).mkdir()
    smi = ["-o", str(out / COMMANDS / "nvidia-smi"), str(NATIVE / "smi.c")]
    _run(compilers, [*compile_, *smi, f"-L{out}", "-l:libnvidia-ml.so.1", "-Wl,-rpath,$ORIGIN/.."])
    # Triton links with -lcuda.
    (out / "libcuda.so").symlink_to("libcuda.so.1")


def _make_library(
    library: generate.Library, compilers: Compilers, compile_: list[str], work: Path, out: Path
) -> None:
    own: list[str] = []
    for source in generate.stand_ins()["sources"].get(library.name, ("small.c",)):
        target = work / f"{library.file}.{source}.o"
        define = f"-DLIB_{re.sub(r'[^a-zA-Z]', '_', library.name)}"
        _run(compilers, [*compile_, define, "-c", str(NATIVE / source), "-o", str(target)])
        own.append(str(target))
    listing = _run(compilers, ["nm", "--defined-only", *own])
    defined = {words[2] for line in listing.splitlines() if len(words := line.split()) == 3}
    stubs = work / f"{library.file}.stubs.c"
    stubs.write_text(generate.stubs(library, defined))
    script: list[str] = []
    if (text := generate.version_script(library)) is not None:
        path = work / f"{library.file}.map"
        path.write_text(text)
        script = [f"-Wl,--version-script={path}"]
    _run(
        compilers,
        [
            *(*compile_, "-w", "-fno-builtin", "-shared", "-o", str(out / library.file)),
            *(*own, str(stubs), *script, f"-Wl,-soname,{library.file}"),
            *(f"-L{out}", "-l:" + _DEVICE, "-ldl", "-Wl,-rpath,$ORIGIN"),
        ],
    )


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
    files = torch.parent.glob("torch-*.dist-info/METADATA")
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    def of(package: str, usual: int) -> int:
        match = re.search(rf"nvidia-{package}[ (]*[=<]=(\d+)\.(\d+)\.(\d+)", text)
        if match is None:
            return usual
        first, second, third = map(int, match.groups())
        scale = 1000 if package.startswith("cudnn") and first < 9 else 10000
        return first * scale + second * 100 + third

    cudnn, nccl, cublas = _USUAL.get(major, _USUAL[max(_USUAL)])
    return of(r"cudnn-cu\d+", cudnn), of(r"nccl-cu\d+", nccl), of(r"cublas(?:-cu\d+)?", cublas)


def _key(interpreter: Interpreter, torch: Path, cache: Path, cpp: str | None) -> str:
    """What the stand-ins depend on: torch's build, what the packages beside it want, our sources.

    The packages are looked through only if one was installed since.
    """
    library = (torch / "lib" / "libtorch_cuda.so").stat()
    parts = [
        interpreter.torch_version or "",
        interpreter.machine,
        f"{torch} {cache} {cpp}",
        f"{library.st_size} {library.st_mtime_ns}",
    ]
    ours = [
        path.read_bytes() for path in sorted([*NATIVE.rglob("*.*"), *NATIVE.parent.glob("*.py")])
    ]
    ours.append(data_text("stand_ins.toml").encode())
    installed = sorted(p.name for root in interpreter.packages for p in root.glob("*.dist-info"))
    noted = cache / "keys" / _digest([*parts, *installed], ours)
    if (key := _noted(noted)) is not None:
        return key
    wanted = [
        f"{lib.file} {version} {' '.join(sorted(names))}"
        for lib in generate.libraries(torch, interpreter.packages)
        for version, names in sorted(lib.symbols.items(), key=str)
    ]
    key = f"torch-{interpreter.torch_version}-{_digest([*parts, *wanted], ours)}"
    with contextlib.suppress(OSError):
        noted.parent.mkdir(exist_ok=True)
        beside = noted.with_name(f"{noted.name}.{os.getpid()}")
        beside.write_text(key, encoding="utf-8")
        beside.replace(noted)
    return key


def _digest(parts: Iterable[str], ours: list[bytes]) -> str:
    return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *ours])).hexdigest()[:12]


def _run(compilers: Compilers, command: list[str]) -> str:
    done = compilers.run(command)
    if done.returncode:
        raise machine_error(
            "emulator_build_failed",
            "The emulated GPU could not be built: "
            f"{shutil.which(command[0]) or command[0]} failed: {first_error(done.stderr)}",
            hint=_SPACE if "No space left" in done.stderr else _COMPILER,
        )
    return done.stdout


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
