"""An optimizer step of DeepSpeed's engine, which steps torch's optimizer once a group."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from oomdoctor.monitor.inside import process_watch
from oomdoctor.monitor.inside.trainer import mark_steps

MODULE = "deepspeed.runtime.engine"


class _Watch:
    """Counts steps as the real one does, of one optimizer for each group."""

    def __init__(self) -> None:
        self.ended, self.hooks = 0, 0

    def after_step(self) -> None:
        self.hooks += not process_watch.engines

    def end_step(self) -> None:
        self.ended += 1


class _Engine:
    """Takes an optimizer step at every second call."""

    def __init__(self, groups: Any) -> None:
        self.groups, self.calls, self.global_steps = groups, 0, 0

    def step(self) -> str:
        self.calls += 1
        if self.calls % 2 == 0:
            for group in self.groups:
                group()
            self.global_steps += 1
        return "stepped"


def test_a_step_ends_where_the_engines_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    engine_class = type("DeepSpeedEngine", (_Engine,), {"step": _Engine.step})
    vars(module)["DeepSpeedEngine"] = engine_class
    here = _Watch()
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(process_watch, "current", lambda: here)
    mark_steps(MODULE, "DeepSpeedEngine", "step")
    engine = engine_class([here.after_step] * 3)
    assert [engine.step() for _ in range(4)] == ["stepped"] * 4
    assert (here.ended, here.hooks) == (2, 0)
    here.after_step()
    assert here.hooks == 1
