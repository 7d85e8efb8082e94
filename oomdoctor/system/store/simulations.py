"""What simulations found, kept in the cache folder by a key that says what shaped it.

A file appears whole or not at all. One that cannot be read is as if it were not there, and is
written again. The files that were used longest ago go first when the folder is full.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import oomdoctor
from oomdoctor.system.environment import cache_dir, simulations_limit
from oomdoctor.system.store.record_files import whole_or_not

_FORMAT = 1
_LONGEST_HEAD = 1000
_SHAPING = ("analysis", "records", "worker")  # the packages whose code shapes what is kept
_SUFFIX = ".sim"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept, and when it was found (UTC, ISO 8601)."""

    made_at: str
    data: bytes


def has(key: str) -> bool:
    """Whether a file is there for a key; it may be damaged."""
    return _path(key).is_file()


def read(key: str) -> Kept | None:
    """What is kept under a key; None if nothing is, or if it is damaged."""
    path = _path(key)
    try:
        head, _, data = path.read_bytes().partition(b"\n")
        facts = json.loads(head) if len(head) < _LONGEST_HEAD else None
        if not isinstance(facts, dict) or (facts.get("format"), facts.get("key")) != (_FORMAT, key):
            return None
        if facts.get("sha256") != hashlib.sha256(data).hexdigest():
            return None
        made_at = datetime.datetime.fromisoformat(facts["made_at"]).isoformat()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    with contextlib.suppress(OSError):  # it was used now
        os.utime(path)
    return Kept(made_at, data)


def write(key: str, data: bytes, made_at: str) -> None:
    """Keep data under a key, and remove the oldest files if the folder is full.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    limit = simulations_limit()
    if len(data) > limit:
        return
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {
        "format": _FORMAT,
        "key": key,
        "made_at": made_at,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    with whole_or_not(path) as beside:
        beside.write_bytes(json.dumps(head).encode() + b"\n" + data)
    _trim(path.parent, limit)


@cache
def source_key() -> str:
    """A hash of oomdoctor's version and of the code that shapes what is kept."""
    package = Path(oomdoctor.__file__).parent
    digest = hashlib.sha256(oomdoctor.__version__.encode())
    for path in sorted(path for name in _SHAPING for path in (package / name).rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    digest.update((package / "data" / "gpus.json").read_bytes())
    return digest.hexdigest()


def _path(key: str) -> Path:
    assert re.fullmatch(r"[0-9a-f]{64}", key)
    return cache_dir() / "simulations" / (key + _SUFFIX)


def _trim(folder: Path, limit: int) -> None:
    files = sorted(_files(folder), key=lambda file: file[1])
    total = sum(size for _, _, size in files)
    for path, _, size in files:
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        total -= size


def _files(folder: Path) -> Iterator[tuple[Path, float, int]]:
    """Every file with when it was last used and its bytes; also what a killed writer left."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may have removed it
            status = path.stat()
            if path.suffix in (_SUFFIX, ".tmp"):
                yield path, status.st_mtime, status.st_size
