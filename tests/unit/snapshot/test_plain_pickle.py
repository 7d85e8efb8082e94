"""A pickle from anybody: plain data is read, everything else is refused, and nothing is run."""

from __future__ import annotations

import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.snapshot.reading import plain_pickle
from oomdoctor.snapshot.reading.plain_pickle import PickleError


class Kept:
    """Keeps every item."""

    def extend(self, target: list[Any], items: list[Any], memo: list[Any]) -> int:
        target += items
        return 0


def read(data: bytes) -> Any:
    return plain_pickle.loads(data, Kept())


SHARED = ["frame"]
PLAIN = [
    None,
    True,
    [False, 0, 1, 255, 256, 65535, 65536, -1, 2**31, -(2**31), 2**47 + 5, 2**63, -(2**63)],
    {"a": 1.5, "b": "text", "ü": "\ud800 surrogate", 3: b"bytes" * 100},
    [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}],
    {"same": [SHARED, SHARED], "long": "x" * 70_000},
    [{"action": "alloc", "frames": [{"line": n}]} for n in range(3000)],
]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", PLAIN)
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    if protocol < 3 and isinstance(value, dict) and 3 in value:
        value = {key: one for key, one in value.items() if key != 3}  # bytes are a call there
    assert read(pickle.dumps(value, protocol)) == value


def test_what_is_shared_stays_shared() -> None:
    found = read(pickle.dumps([SHARED, SHARED], 4))
    assert found[0] is found[1]


class Calls:
    """Makes a pickle that calls something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def hostile(marker: Path) -> dict[str, bytes]:
    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w')"
    inner = Calls(eval, code)
    return {
        **{f"system {n}": pickle.dumps(Calls(os.system, touch), n) for n in range(6)},
        "eval in a list": pickle.dumps({"segments": [1, [Calls(eval, code)]]}),
        "nested": pickle.dumps(Calls(list, [inner, inner])),
        "as a key": pickle.dumps({"segments": {"x": Calls(exec, code)}}),
        "inst": f"(S'{touch}'\nios\nsystem\n.".encode(),
        "obj": b"(cos\nsystem\nX" + struct.pack("<I", len(touch)) + touch.encode() + b"o.",
        "newobj": b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001t\x81.",
        "build": b"\x80\x02}(X\x01\x00\x00\x00aK\x01ub}b.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "a class": pickle.dumps(Path("x")),
        "a set": pickle.dumps({1, 2}),
    }


def test_what_would_run_code_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for name, data in hostile(marker).items():
        with pytest.raises(PickleError) as refused:
            read(data)
        assert "it is no snapshot" in str(refused.value), name
        assert not marker.exists(), name


def test_the_message_names_what_it_wanted_to_import() -> None:
    with pytest.raises(PickleError, match=r"wants to import posix\.system; nothing of it was run"):
        read(pickle.dumps(Calls(os.system, "true"), 4))
    with pytest.raises(PickleError, match=r"import a\\x1b\[31mb\.c"):
        read(b"ca\x1b[31mb\nc\n.")


BOMBS = {
    "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "memo by name": b"]p99999999999999999999\n.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "text 4": b"X\xff\xff\xff\xffx.",
    "number": b"\x8b" + struct.pack("<I", 10**6) + b"\x01" * 10**6 + b".",
    "digits": b"I" + b"9" * 10**6 + b"\n.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",
    "key": b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"K\x01s.",
    "key of dict": b"(" + b")" + b"\x85" * 200_000 + b"K\x01d.",
    "get": b"\x80\x02h\x05.",
    "get negative": b"]q\x00g-1\n.",
    "append to number": b"K\x01K\x02a.",
    "items of number": b"K\x01(K\x02K\x03u.",
    "odd items": b"}(K\x02u.",
    "empty": b"",
    "nothing": b".",
    "two": b"K\x01K\x01.",
    "text file": b"hello\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_and_nonsense_are_refused(name: str) -> None:
    with pytest.raises(PickleError):
        read(BOMBS[name])


def test_more_objects_than_a_snapshot_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "_MOST_CONTAINERS", 1000)
    assert len(read(b"(" + b"}" * 1000 + b"l.")) == 1000
    with pytest.raises(PickleError, match="too many"):
        read(b"(" + b"}" * 1001 + b"l.")


def test_deep_nesting_is_no_matter() -> None:
    depth = 200_000
    found = read(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(depth - 1):
        (found,) = found
    assert found == []


def test_a_file_that_is_cut_off_or_damaged_is_refused() -> None:
    whole = pickle.dumps(PLAIN[-1][:10], 4)
    for end in range(len(whole)):
        with pytest.raises(PickleError):
            read(whole[:end])
    chance = random.Random(0)
    for _ in range(1000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            read(bytes(damaged))
        except PickleError:
            continue


def test_a_file_is_read_with_progress(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps([[n, f"{n:0100}"] for n in range(100_000)], 4))
    shares: list[float] = []
    assert len(plain_pickle.load(path, Kept(), shares.append)) == 100_000
    assert len(shares) > 1 and shares == sorted(shares) and 0 < shares[0] < shares[-1] <= 1
    path.write_bytes(b"")
    with pytest.raises(PickleError, match="empty"):
        plain_pickle.load(path, Kept())
