"""Facts about this process and its devices for the record."""

from __future__ import annotations

import ast
import ctypes
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from oomdoctor.analysis.own_code import is_own, known_packages
from oomdoctor.monitor.inside.ending import TYPED, script_file, typed_code
from oomdoctor.monitor.pinned import drop_copies
from oomdoctor.system.environment import variable

_LIBRARIES = (
    *("torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed"),
    *("lightning", "pytorch-lightning", "liger-kernel", "flash-attn", "xformers", "triton"),
    *("unsloth", "axolotl", "torchao", "transformer-engine", "megatron-core"),
)
_AUDIT = "LD_AUDIT"  # names a library beside that of the emulated device
_DEVICE = "libemugpu.so"
TIMED = "<timed exec>"
"""The file of the rest of a cell that begins with %%time."""
_MAGIC = "run_cell_magic("
_KINDS = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")


def versions() -> dict[str, str | None]:
    """The versions of the libraries that decide how much memory a training needs."""
    from oomdoctor.system.machine import libraries

    return {name: version for name, version in libraries.versions(_LIBRARIES).items() if version}


def library_folders() -> list[str]:
    """Folders and files whose code is not the user's: the standard library and packages."""
    return sorted({*_installed(), *_imported()})


@cache
def _installed() -> tuple[str, ...]:
    """The folders of packages, and packages that were installed into other folders of sys.path."""
    import site

    folders = [sysconfig.get_path(name) for name in _KINDS]
    with suppress(AttributeError):
        folders += [*site.getsitepackages(), site.getusersitepackages()]
    script = script_file() or ""
    for entry in sys.path:
        if entry in folders or script.startswith(f"{entry}{os.sep}__main__"):
            continue
        if Path(entry).is_file():  # such as a zip file
            folders.append(entry)
        with suppress(Exception):
            folders += [str(Path(entry, name)) for name in _installed_in(entry)]
    return tuple(folders)


def _installed_in(folder: str) -> Iterator[str]:
    """The names of the packages and modules that pip installed into a folder with --target."""
    from importlib.metadata import distributions

    for package in distributions(path=[folder]):
        if package.read_text("RECORD") is None:
            continue  # a checkout that is installed in place has its facts beside its own code
        tops = (package.read_text("top_level.txt") or "").split()
        tops = tops or [file.parts[0] for file in package.files or () if len(file.parts) > 1]
        tops += [file.name for file in package.files or () if len(file.parts) == 1]
        yield from sorted({top for top in tops if top not in ("..", "bin", "__pycache__")})


def _imported() -> Iterator[str]:
    """The folders of known packages that this process has imported from anywhere."""
    for name in known_packages():
        module = vars(sys.modules[name]) if name in sys.modules else {}
        if "__version__" in module:  # a user's own folder of that name has none
            yield from module.get("__path__", ())


@cache
def is_own_here(file: str, script: str | None) -> bool:
    """Whether a file is the user's own code in this process, whose script is `script`."""
    return is_own(file, library_folders(), script)


def own_files() -> list[str]:
    """The files of the user's own code that this process has loaded."""
    folders, script = library_folders(), script_file()
    # Some modules import others when they are asked for an attribute, so none is asked.
    loaded = {getattr(m, "__dict__", {}).get("__file__") for m in list(sys.modules.values())}
    files = {str(file) for file in (*loaded, script) if file is not None}
    files = {file for file in files if file.endswith(".py")}
    return sorted(f for f in files | set(_kept_lines()) if is_own(f, folders, script))


def code_without_file(read_in: set[str]) -> dict[str, tuple[str, str]]:
    """Code of the user's, or of `read_in`, which is in no file: how it is shown, its text."""
    script = script_file()
    return {
        file: (_shown(file), "".join(lines))
        for file, lines in _kept_lines(read_in).items()
        if file in read_in or is_own_here(file, script)
    }


def _kept_lines(files: Iterable[str] = ()) -> dict[str, list[str]]:
    """The lines of code that Python itself keeps because they are in no file, as of a cell."""
    typed, kept = typed_code(), {}
    if typed is not None:
        kept[TYPED] = typed.splitlines(keepends=True)
    for file in {*linecache.cache, *files}:
        with suppress(Exception):
            if not Path(file).exists() and (lines := linecache.getlines(file)):
                kept[file] = _without_magic(lines)
    return kept


def _without_magic(lines: list[str]) -> list[str]:
    """The lines of a cell; of one that begins with %%time as they are in the notebook.

    IPython makes one call of it: `get_ipython().run_cell_magic("time", "", "the rest")`.
    """
    if _MAGIC not in lines[0]:
        return lines
    call = ast.parse("".join(lines)).body[0]
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    name, line, rest = (ast.literal_eval(value) for value in call.value.args)
    return [f"# %%{name} {line}\n", *rest.splitlines(keepends=True)]


def _shown(file: str) -> str:
    """How a cell is named in a traceback; other code by its file."""
    with suppress(Exception):
        shell = sys.modules["IPython"].get_ipython()
        label, number = shell.compile.format_code_name(file)
        return f"{label} {number}"
    return file


def outside_bytes(device: int) -> int:
    """Bytes of the device that are in use, but not by this process's allocator."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def beside_torch_bytes(device: int) -> int | None:
    """Bytes of an emulated device that this process holds, but not PyTorch's allocator.

    They are the CUDA context and what other libraries allocate. None on a real device.
    """
    import torch

    library = emulated_device()
    if library is None:
        return None
    held = ctypes.c_uint64()
    library.emu_usage(library.emu_physical(device), None, ctypes.byref(held))
    return int(held.value) - int(torch.cuda.memory_reserved(device))


def resident_bytes() -> int | None:
    """The host memory of this process; None where /proc does not say."""
    with suppress(OSError, ValueError, IndexError):
        import resource

        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return None


def emulated_device() -> Any:
    """The emulated device that this process has loaded; None on a real one."""
    with suppress(OSError, ValueError):
        library = Path(variable(_AUDIT) or "").with_name(_DEVICE)
        return ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    return None


def named_in(frame: FrameType, name: str) -> Any:
    """What a variable of a frame, or an attribute of one, is now; None if that is unknown."""
    first, *attributes = name.split(".")
    values = frame.f_locals
    value = values.get(first, frame.f_globals.get(first))
    if values is not frame.f_globals:
        drop_copies(frame, values)
    for attribute in attributes:
        value = getattr(value, attribute, None)
    return value
