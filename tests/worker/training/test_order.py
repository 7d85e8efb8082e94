"""The techniques of a training act in one order, around the three steps of `build`."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from compared_steps import CPU
from tiny_models import tiny_job

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training import build as building
from oomdoctor.worker.training import order
from oomdoctor.worker.training.order import TECHNIQUES, Mark, Technique
from oomdoctor.worker.training.setup import Setup

MARKS = get_args(Mark)
# In each line, what acts first is needed by what acts next, for the reason beside it.
CHAINS = [
    # peft keeps what is frozen; its wrapper would hide the layers from the count.
    ("freeze_vision", "freeze", "make_trl_trainer", "add_adapter", "_add_adapter"),
    # An adapter is looked at, converted with its base, and replaced inside its wrapper.
    ("_add_adapter", "check_scalable", "convert_to_torchao", "apply_kernels"),
    # A checkpoint goes around what was replaced, and activations are saved around both.
    ("apply_kernels", "enable_checkpointing", "keep_activations_on_host"),
    # The scaler and Transformer Engine need an accelerator.
    ("keep_activations_on_host", "_make_trainer", "scale_gradients"),
    ("scale_gradients", "convert_to_transformer_engine"),
]


def _name(technique: Technique) -> str:
    return technique.act.__name__


def test_the_marks_are_in_order_and_no_technique_stands_twice() -> None:
    places = [MARKS.index(technique.mark) for technique in TECHNIQUES]
    assert places == sorted(places)
    assert len({technique.act for technique in TECHNIQUES}) == len(TECHNIQUES)


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_what_needs_another_technique_acts_after_it(chain: tuple[str, ...]) -> None:
    names = [_name(technique) for technique in TECHNIQUES]
    places = [names.index(name) for name in chain]
    assert places == sorted(places)


def test_a_model_gets_one_trainer_and_at_most_one_adapter() -> None:
    trainers = {"make_trl_trainer", "_make_trainer"}
    adapters = {"make_trl_trainer", "add_adapter", "_add_adapter"}
    for changes in (
        {},
        {"method": "lora"},
        {"method": "lora", "library": "unsloth"},
        {"method": "lora", "objective": "dpo"},
        {"objective": "grpo"},
    ):
        job = tiny_job("dense", **changes)
        acting = {_name(technique) for technique in TECHNIQUES if technique.of(job)}
        assert len(acting & trainers) == 1, changes
        if job.config.method != "full":
            assert len(acting & adapters) == 1, changes


def test_each_mark_is_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is there before; then the model, but no optimizer; then all, but not prepared."""
    seen: dict[str, tuple[bool, bool]] = {}

    def look(mark: Any) -> Technique:
        def act(setup: Setup) -> None:
            wrapped = hasattr(setup, "trainer") and setup.trainer.model_wrapped
            assert not wrapped or wrapped is setup.trainer.model
            seen[mark] = hasattr(setup, "model"), hasattr(setup, "optimizer")

        return Technique(mark, lambda _: True, act)

    monkeypatch.setattr(order, "TECHNIQUES", (*TECHNIQUES, *map(look, MARKS)))
    setup = building.build(tiny_job("dense"), CPU)
    assert seen == {"before": (False, False), "model": (True, False), "optimizer": (True, True)}
    assert list(seen) == list(MARKS)
    assert setup.trainer.optimizer is not None


def test_a_technique_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is enough for a technique to act, and only for the jobs that it is for."""
    added = Technique(
        "model",
        lambda job: job.config.frozen_layers == 1,
        lambda setup: setup.notes.append("one is frozen"),
    )
    monkeypatch.setattr(order, "TECHNIQUES", (*TECHNIQUES, added))
    assert "one is frozen" in building.build(tiny_job("dense", frozen_layers=1), CPU).notes
    assert "one is frozen" not in building.build(tiny_job("dense"), CPU).notes


def test_what_one_technique_refuses_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Setup) -> None:
        raise UnsupportedError("not here")

    acted: list[Setup] = []
    rows = (
        Technique("before", lambda _: True, refuse),
        Technique("before", lambda _: True, acted.append),
    )
    monkeypatch.setattr(order, "TECHNIQUES", rows)
    with pytest.raises(UnsupportedError, match="not here"):
        building.build(tiny_job("dense"), CPU)
    assert not acted
