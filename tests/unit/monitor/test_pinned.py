"""What keeps pinned tensors is named; here any object stands for a tensor."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.monitor import pinned
from oomdoctor.monitor.pinned import Keeper, PinnedMemory, keeper
from oomdoctor.units import MIB


class Tensor:
    """Stands for a pinned tensor."""


class Callback:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def add(self, batch: Any) -> None:
        self.seen.append(batch)


@pytest.fixture(autouse=True)
def every_tensor_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[Tensor]:
        return [one for one in gc.get_objects() if isinstance(one, Tensor)]

    monkeypatch.setattr(pinned, "_pinned_tensors", found)


def test_a_list_of_a_running_function() -> None:
    kept = []
    for _ in range(20):
        kept.append(Tensor())
    found = keeper()
    assert found is not None and (found.name, len(kept)) == ("kept", 20)
    assert found.file == __file__ and "kept.append(" in line(found)


def test_batches_in_a_list() -> None:
    batches: list[dict[str, Tensor]] = []
    for _ in range(20):
        batch = {"ids": Tensor(), "mask": Tensor()}
        batches.append(batch)
    found = keeper()
    assert found is not None and found.name == "batches" and "batches.append(" in line(found)


def test_an_attribute_of_an_object() -> None:
    owners = {"trainer": [Callback()]}
    for _ in range(20):
        owners["trainer"][0].add((Tensor(),))
    found = keeper()
    assert found is not None and found.name == "Callback.seen"
    assert "self.seen.append(" in line(found)


def test_looking_keeps_nothing_alive() -> None:
    def keep_and_look() -> weakref.ref[Tensor]:
        kept = [Tensor() for _ in range(20)]
        assert keeper() is not None
        kept = [kept[0]]
        del kept[0]
        last = Tensor()
        return weakref.ref(last)

    gc.collect()
    gc.disable()
    try:
        gone = keep_and_look()
        assert gone() is None
        assert pinned._pinned_tensors() == []  # not even in a circle
    finally:
        gc.enable()


def test_nothing_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_pinned_tensors", list)
    assert keeper() is None


@pytest.mark.parametrize(
    ("size", "alerts"),
    [(lambda step: 4 * MIB * step, 1), (lambda step: 64 * MIB, 0), (lambda step: None, 0)],
)
def test_it_warns_once_of_steady_growth(
    size: Callable[[int], int | None], alerts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = PinnedMemory()
    monkeypatch.setattr(pinned, "_pinned_tensors", list)
    found = []
    for step in range(100):
        monkeypatch.setattr(pinned, "pinned_bytes", lambda step=step: size(step))
        found.append(watched.look(step))
    said = [alert for alert in found if alert is not None]
    assert len(said) == alerts
    assert all(one.kind == "pinned" and one.bytes_per_step == 4 * MIB for one in said)


def test_garbage_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, held = PinnedMemory(), [0]
    monkeypatch.setattr(pinned, "pinned_bytes", lambda: held[0])
    monkeypatch.setattr(pinned.gc, "collect", lambda: held.__setitem__(0, 0))
    for step in range(100):
        held[0] += 4 * MIB
        assert watched.look(step) is None


def line(found: Keeper) -> str:
    return Path(found.file).read_text(encoding="utf-8").splitlines()[found.line - 1]
