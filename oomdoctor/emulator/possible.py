"""Whether an interpreter can use the emulated GPU, and if not, what to type."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from oomdoctor.emulator.interpreter import Interpreter, ask
from oomdoctor.errors import OomDoctorError, machine_error

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
    if interpreter.cuda.split(".")[0] not in _CUDA or _number(version) < _OLDEST_TORCH:
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


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def _no(why: str, hint: str) -> OomDoctorError:
    return machine_error("emulation_impossible", f"The GPU cannot be emulated: {why}.", hint)
