"""The interpreter that the emulated GPU is for: its torch, whether it will do, and what to type.

The interpreter is asked once; torch itself is not imported, because a CUDA build without its CUDA
libraries cannot be.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error

_ASK = """
import importlib.util, json, platform, site, sys, sysconfig
spec = importlib.util.find_spec("torch")
found = list(spec.submodule_search_locations or []) if spec else []
print(json.dumps({
    "torch": found[0] if found else None,
    "packages": [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))],
    "system": platform.system(),
    "machine": platform.machine(),
    "libc": platform.libc_ver()[0],
}))
"""
_TIMEOUT_S = 60
_OLDEST_TORCH = (2, 4)
_CUDA = ("12", "13")
# A CUDA build of torch without the CUDA libraries, which the stand-ins replace, and what trains
# with it.
SMALL_BUILD = (
    "python3 -m venv cuda && cuda/bin/pip install --no-deps torch==2.12.1 triton==3.7.1 "
    "transformers accelerate peft bitsandbytes && "
    "cuda/bin/pip install numpy filelock typing-extensions sympy networkx jinja2 fsspec "
    "'setuptools<82' psutil pyyaml packaging safetensors huggingface-hub tokenizers regex tqdm"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`torch` is the package's folder and `cuda` its CUDA version; None without them."""

    python: Path
    torch: Path | None
    torch_version: str | None
    cuda: str | None
    packages: tuple[Path, ...]
    system: str
    machine: str
    libc: str


@cache
def ask(python: Path) -> Interpreter:
    """What an interpreter has.

    Raises:
        OSError: it cannot be run.
        ValueError: it did not answer.
    """
    done = subprocess.run(
        [python, "-c", _ASK],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        lines = done.stderr.strip().splitlines()
        raise ValueError(lines[-1] if lines else "it printed nothing") from error
    folder = Path(answer["torch"]) if answer["torch"] else None
    version, cuda = _versions(folder) if folder else (None, None)
    packages = tuple(map(Path, answer["packages"]))
    if folder is not None and any(folder.parent.glob("torch-*.dist-info")):
        packages = tuple(dict.fromkeys((*packages, folder.parent)))  # of pip's --target
    system, machine, libc = answer["system"], answer["machine"], answer["libc"]
    return Interpreter(python, folder, version, cuda, packages, system, machine, libc)


def _versions(torch: Path) -> tuple[str | None, str | None]:
    """The versions in torch/version.py: of torch, and of CUDA (None for other builds)."""
    try:
        text = (torch / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None, None
    version, cuda = (
        re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        for name in ("__version__", "cuda")
    )
    return version and version[1], cuda and cuda[1]


def find_compiler(named: str | None = None) -> str | None:
    """The C compiler to use: the one named (the variable CC), or the first on the PATH."""
    names = [named] if named else ["cc", "gcc", "clang"]
    return next((program for name in names if (program := shutil.which(name.split()[0]))), None)


def reason_against(python: Path, compiler: str | None = None) -> OomDoctorError | None:
    """Why the interpreter cannot use the emulated GPU; None if it can."""
    try:
        interpreter = ask(python)
    except (OSError, ValueError) as error:
        reason = str(error)[:100].splitlines()[0]
        why = f"{python} cannot be asked for its torch ({reason})"
        return _no(why, "pass --python /path/to/python")
    return _against_torch(interpreter) or _against_system(interpreter, compiler)


def lacks_cuda_libraries(python: Path) -> bool:
    """Whether torch is a CUDA build that cannot be imported, because it has no CUDA libraries.

    Decided by files alone, in the layouts of pip, of wheels that bring their libraries, and of
    conda; False where torch is not found.
    """
    prefix = python.absolute().parent.parent
    for packages in _packages(prefix):
        libraries = packages / "torch" / "lib"
        if (libraries / "libtorch_cuda.so").is_file():
            places = (*packages.glob("nvidia/*/lib"), libraries, prefix / "lib")
            return not any(any(place.glob("libcudart*.so*")) for place in places)
    return False


def _packages(prefix: Path) -> Iterator[Path]:
    """The folders with the packages of an environment, and those that its .pth files name."""
    for own in prefix.glob("lib/python3*/site-packages"):
        yield own
        for file in sorted(own.glob("*.pth")):
            lines = map(str.strip, file.read_text(errors="replace").splitlines())
            named = (line for line in lines if line and not line.startswith(("#", "import ")))
            yield from (own / line for line in named if (own / line).is_dir())


def _against_torch(interpreter: Interpreter) -> OomDoctorError | None:
    small = f"make a small one and pass it with --python cuda/bin/python:\n{SMALL_BUILD}"
    if interpreter.torch is None:
        return _no(f"{interpreter.python} has no torch", small)
    version = interpreter.torch_version or "of unknown version"
    if interpreter.cuda is None or not (interpreter.torch / "lib" / "libtorch_cuda.so").is_file():
        return _no(f"torch {version} of {interpreter.python} is not a CUDA build", small)
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if interpreter.cuda.split(".")[0] not in _CUDA or number < _OLDEST_TORCH:
        return _no(
            f"torch {version} was built for CUDA {interpreter.cuda}; "
            "emulation needs torch 2.4 or newer, built for CUDA 12 or 13",
            small,
        )
    return None


def _against_system(interpreter: Interpreter, compiler: str | None) -> OomDoctorError | None:
    if interpreter.system != "Linux" or interpreter.libc != "glibc":
        kind = interpreter.system if interpreter.system != "Linux" else "Linux without glibc"
        why = f"emulation needs Linux with glibc, and this is {kind}"
        return _no(why, "use WSL or a container")
    if find_compiler(compiler) is None or shutil.which("nm") is None:
        install = "apt install gcc, module load gcc, or conda install gcc"
        return _no("there is no C compiler to build its libraries with", install)
    return None


def _no(why: str, hint: str) -> OomDoctorError:
    return machine_error("emulation_impossible", f"The GPU cannot be emulated: {why}.", hint)
