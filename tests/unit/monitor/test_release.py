"""What a failed block held is freed: frames of the traceback, names of the block, and no others."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from oomdoctor.monitor.guarding.diagnosed import bound_names, release


class Tensor:
    """Stands in for something large."""


def fails(keep: Callable[[Tensor], None]) -> None:
    activations = Tensor()
    keep(activations)

    def deeper() -> None:
        inner = Tensor()
        keep(inner)
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("out of memory") from error

    deeper()


def test_frames_and_names_of_the_block_are_freed() -> None:
    seen: list[weakref.ref[Tensor]] = []
    frame = sys._getframe()
    old, loss, rounds = Tensor(), Tensor(), 0
    before = bound_names(frame)
    seen.append(weakref.ref(loss))
    try:
        loss = Tensor()
        output = Tensor()
        rounds = 7
        seen += [weakref.ref(loss), weakref.ref(output)]
        fails(lambda one: seen.append(weakref.ref(one)))
    except RuntimeError as error:
        release(error, frame, before)
    assert [one() for one in seen] == [None] * 5
    assert (loss, output, rounds) == (None, None, 7)
    assert isinstance(old, Tensor)


def test_looking_at_names_keeps_nothing_alive() -> None:
    one = Tensor()
    seen = weakref.ref(one)
    bound_names(sys._getframe())
    one = None
    assert seen() is None


def test_names_of_a_module_are_freed_too() -> None:
    code = """
import sys, weakref
from oomdoctor.monitor.guarding.diagnosed import bound_names, release
class Tensor: pass
before = bound_names(sys._getframe())
try:
    large = Tensor()
    seen = weakref.ref(large)
    raise RuntimeError
except RuntimeError as error:
    release(error, sys._getframe(), before)
"""
    names: dict[str, object] = {}
    exec(
        code.replace("seen = weakref.ref(large)", "found.append(weakref.ref(large))"),
        names | {"found": (found := [])},
    )
    assert found[0]() is None
