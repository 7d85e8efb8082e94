"""Which libraries and symbols an ELF library wants from others.

Only what the generator of stand-ins needs: 64-bit little-endian files (x86-64 and AArch64). The
layout is that of the System V ABI and of the GNU symbol versions (Linux Standard Base).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_NEEDED, _HASH, _STRTAB, _SYMTAB = 1, 4, 5, 6
_GNU_HASH, _VERSYM, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
_PT_LOAD, _PT_DYNAMIC = 1, 2
_SYMBOL_BYTES = 24


@dataclass(frozen=True, slots=True)
class Wanted:
    """A symbol that a library leaves open; without a version, `library` and `version` are None."""

    name: str
    library: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class _Image:
    data: mmap.mmap
    segments: tuple[tuple[int, int, int], ...]  # (address, bytes, offset in the file)
    dynamic: tuple[tuple[int, int], ...]  # (tag, value)

    def offset(self, address: int) -> int:
        for start, size, offset in self.segments:
            if start <= address < start + size:
                return address - start + offset
        raise ValueError(f"no segment holds address {address:#x}")

    def first(self, tag: int) -> int | None:
        return next((value for entry, value in self.dynamic if entry == tag), None)

    def text(self, index: int) -> str:
        start = self.offset(self.first(_STRTAB) or 0) + index
        return self.data[start : self.data.find(b"\0", start)].decode(errors="replace")


def needed(path: Path) -> tuple[str, ...]:
    """The names of the libraries that a library loads; empty if the file is no such ELF library."""
    image = _read(path)
    if image is None:
        return ()
    return tuple(image.text(value) for tag, value in image.dynamic if tag == _NEEDED)


def wanted(path: Path) -> tuple[Wanted, ...]:
    """The symbols that a library leaves open; empty if the file is no such ELF library."""
    image = _read(path)
    symbols = image.first(_SYMTAB) if image else None
    if image is None or symbols is None:
        return ()
    versions, names = image.first(_VERSYM), _versions(image)
    table = image.offset(symbols)
    open_symbols: list[Wanted] = []
    for index in range(1, _count_open(image)):
        name, _, _, section = struct.unpack_from("<IBBH", image.data, table + index * _SYMBOL_BYTES)
        if section:  # defined here
            continue
        number = 0
        if versions is not None:
            (number,) = struct.unpack_from("<H", image.data, image.offset(versions) + 2 * index)
        library, version = names.get(number & 0x7FFF, (None, None))
        open_symbols.append(Wanted(image.text(name), library, version))
    return tuple(open_symbols)


def _read(path: Path) -> _Image | None:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # unreadable, or empty
        return None
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    try:
        (at,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        segments, dynamic = [], None
        for index in range(count):
            kind, _, offset, address, _, in_file, _ = struct.unpack_from(
                "<IIQQQQQ", data, at + index * size
            )
            if kind == _PT_LOAD:
                segments.append((address, in_file, offset))
            if kind == _PT_DYNAMIC:
                dynamic = (offset, in_file)
        if dynamic is None:
            return None
        entries = struct.iter_unpack("<QQ", data[dynamic[0] : dynamic[0] + dynamic[1] // 16 * 16])
        return _Image(data, tuple(segments), tuple(entries))
    except struct.error:
        return None


def _count_open(image: _Image) -> int:
    """An index after the last open symbol: those that the GNU hash table leaves out come first."""
    for tag in (_GNU_HASH, _HASH):
        if (table := image.first(tag)) is not None:
            return int(struct.unpack_from("<I", image.data, image.offset(table) + 4)[0])
    return 0


def _versions(image: _Image) -> dict[int, tuple[str, str]]:
    """Version number -> (library, version)."""
    table, count = image.first(_VERNEED), image.first(_VERNEEDNUM)
    if table is None or count is None:
        return {}
    versions: dict[int, tuple[str, str]] = {}
    at = image.offset(table)
    for _ in range(count):
        _, entries, file, first, after = struct.unpack_from("<HHIII", image.data, at)
        entry = at + first
        for _ in range(entries):
            _, _, number, name, next_entry = struct.unpack_from("<IHHII", image.data, entry)
            versions[number] = (image.text(file), image.text(name))
            entry += next_entry
        at += after
    return versions
