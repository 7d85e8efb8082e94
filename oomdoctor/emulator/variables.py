"""The environment variables that the emulated device and its ranks read; the device's C too."""

from __future__ import annotations

import os
from pathlib import Path

SESSION = "OOMDOCTOR_EMULATED"
"""The folder of the session of emulated GPUs that a process runs on."""
ALONE = "OOMDOCTOR_ALONE"
"""Set if one rank runs and is answered for the others."""
VALUES = "OOMDOCTOR_EMULATED_VALUES"
"""What stands for values that the device does not know: a number, half or max; else zeros."""
LAUNCHES = "OOMDOCTOR_EMULATED_LAUNCHES"
"""The folder for notes of what is launched; without it, nothing is noted."""

_STORAGE_BYTES = 64 << 10  # jemalloc takes 2.6 KiB; each thread pays for it with addresses only
_OWN_PAGES_BYTES = 1 << 20  # host memory of this size is given back to the system when it is freed


def first_in(path: str | None, folder: Path) -> str:
    """A PATH, by default ours, on which the programs of a folder come first."""
    usual = os.environ.get("PATH", os.defpath) if path is None else path
    return os.pathsep.join((str(folder), usual))


def tunables() -> str:
    """GLIBC_TUNABLES for emulated processes. What the user set comes last and wins.

    There is room for the thread-local variables of preloaded libraries: with LD_AUDIT, glibc lays
    out static thread-local storage before it reads LD_PRELOAD, so a process with jemalloc, as each
    of Ray's servers, ended before it began. And glibc gives large blocks back at once. Else it
    keeps those below 32 MiB once a few were freed: loading a model in 8 bits left half a
    checkpoint's worth of freed copies in the host's memory.
    """
    ours = f"glibc.rtld.optional_static_tls={_STORAGE_BYTES}"
    ours += f":glibc.malloc.mmap_threshold={_OWN_PAGES_BYTES}"
    return ":".join(filter(None, (ours, os.environ.get("GLIBC_TUNABLES"))))


def launched_number(name: str) -> int | None:
    """A number that a launcher gave this process, such as RANK; None if it gave none."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def compiling(scratch: Path) -> dict[str, str]:
    """The environment of a compiler whose temporary files shall be in a folder."""
    return {**os.environ, "TMPDIR": str(scratch)}
