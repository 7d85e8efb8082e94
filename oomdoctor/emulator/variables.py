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

_STORAGE_BYTES = 64 << 10  # jemalloc takes 2.6 KiB; each thread pays for it with addresses only


def first_in(path: str | None, folder: Path) -> str:
    """A PATH, by default ours, on which the programs of a folder come first."""
    usual = os.environ.get("PATH", os.defpath) if path is None else path
    return os.pathsep.join((str(folder), usual))


def with_thread_storage() -> str:
    """GLIBC_TUNABLES with room for the thread-local variables of preloaded libraries.

    With LD_AUDIT, glibc lays out static thread-local storage before it reads LD_PRELOAD: a process
    with jemalloc, as each of Ray's servers, ended before it began. What the user set comes last and
    wins.
    """
    ours = f"glibc.rtld.optional_static_tls={_STORAGE_BYTES}"
    return ":".join(filter(None, (ours, os.environ.get("GLIBC_TUNABLES"))))


def launched_number(name: str) -> int | None:
    """A number that a launcher gave this process, such as RANK; None if it gave none."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def compiling(scratch: Path) -> dict[str, str]:
    """The environment of a compiler whose temporary files shall be in a folder."""
    return {**os.environ, "TMPDIR": str(scratch)}
