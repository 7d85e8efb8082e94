"""Let a command see the emulated devices.

A session is a folder: `device` states the card, `table` counts who holds how much of it, and the
command's environment names both. Nothing else is changed, and nothing outlives the folder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.emulator import build
from oomdoctor.emulator.card import MAX_DEVICES, Devices, described
from oomdoctor.emulator.interpreter import ask, find_compiler, reason_against
from oomdoctor.emulator.variables import SESSION, first_in, tunables

# emu_table in native/session.h: slots of a pid and three counts a device.
_SLOT = struct.Struct(f"<q{3 * MAX_DEVICES}Q")
_SLOTS = 512


@dataclass(frozen=True, slots=True)
class Session:
    """What a command needs: `variables` to add to its environment. `folder` is the session's."""

    folder: Path
    variables: dict[str, str]
    devices: Devices

    def hold(self, pid: int, amounts: dict[int, int]) -> None:
        """Let a foreign process hold bytes of devices, from now on: device -> bytes."""
        large = [amounts.get(device, 0) for device in range(MAX_DEVICES)]
        with (self.folder / "table").open("r+b") as table:
            table.write(_SLOT.pack(pid, *([0] * (2 * MAX_DEVICES)), *large))


@contextmanager
def entered(
    python: Path,
    devices: Devices,
    folder: Path,
    cache: Path,
    compiler: str | None = None,
    path: str | None = None,
    on_build: Callable[[], None] = lambda: None,
) -> Iterator[Session]:
    """A session of a command that `python` runs, in an existing, empty `folder`.

    The stand-ins are built into `cache` if they are not there, or into `folder` if that cannot be
    or is another user's; `on_build` is called before. Process 1 holds `foreign_bytes`. `path` is
    the PATH of the command; None: ours.

    Raises:
        OomDoctorError: emulation is not possible, with the reason.
    """
    if (reason := reason_against(python, compiler)) is not None:
        raise reason
    c_compiler = find_compiler(compiler)
    assert c_compiler is not None, "reason_against has looked for it"
    try:
        libraries = build.built(ask(python), c_compiler, cache, on_build)
    except OSError:  # the cache cannot be used: they serve this session alone
        cache = folder / "cache"
        libraries = build.built(ask(python), c_compiler, cache, on_build)
    (folder / "device").write_text(described(devices), encoding="utf-8")
    with (folder / "table").open("wb") as table:
        table.truncate(_SLOT.size * _SLOTS)
    session = Session(
        folder,
        {
            SESSION: str(folder),
            "LD_AUDIT": str(libraries / build.AUDIT),
            "GLIBC_TUNABLES": tunables(),
            "PATH": first_in(path, libraries / build.COMMANDS),
            "TRITON_LIBCUDA_PATH": str(libraries),
            # What is compiled for the emulated card stays out of the user's own caches.
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        },
        devices,
    )
    if devices.foreign_bytes:
        session.hold(1, dict.fromkeys(range(devices.count), devices.foreign_bytes))
    yield session
