"""`explain` and `plan` name the same changes first: it is one table and one search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from explain_make import answer, gib, llama

from oomdoctor.analysis.changes.search import Search, Verdict
from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.explain import diagnose
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies import sets
from oomdoctor.explain.remedies.sets import base_of, completed, offered
from oomdoctor.explain.training.known import Given
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.diagnosis import Frame, Remedy

OWN_LOOP = (Frame("/home/me/train.py", 9, "main", "loss = model(**batch).loss"),)


@dataclass
class Simulated:
    """A stand-in for the judge of `plan`, that finds the same peaks."""

    usable_bytes: int
    form: sets.ClosedForm

    def judge(self, found: Sequence[ChangeSet]) -> list[Verdict]:
        return [self._verdict(self.form.least_bytes(one.config)) for one in found]

    def least_bytes(self, config: TrainConfig) -> int:
        return 0

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        return False

    def _verdict(self, needs: int) -> Verdict:
        close = sets.tight(self.form.case, needs)
        fits = "borderline" if close else "fits"
        return Verdict(fits if needs <= self.usable_bytes else "short", needs)  # type: ignore[arg-type]


def _asked(
    monkeypatch: pytest.MonkeyPatch, card: float, batch: int, length: int, **settings: Any
) -> tuple[Case, tuple[Remedy, ...]]:
    """The case of a training that does not fit, and what `explain` proposes."""
    cases: list[Case] = []

    def kept(case: Case) -> list[sets.Choice]:
        cases.append(case)
        return sets.choices(case)

    monkeypatch.setattr(diagnose, "choices", kept)
    given = Given(
        model=llama(), micro_batch_size=batch, sequence_length=length, settings=settings
    )  # fmt: skip
    found = answer(phase="loss", frames=OWN_LOOP, given=given, event_capacity_bytes=gib(card))
    return cases[0], found.remedies


_TRAININGS: tuple[tuple[float, int, int, dict[str, Any]], ...] = (
    (80, 8, 4096, {}),
    (80, 1, 2048, {"weights_dtype": "float32"}),
    (62, 4, 4096, {}),
    (48, 4, 2048, {}),
    (40, 1, 2048, {}),
    (24, 1, 2048, {}),
    (24, 4, 2048, {"adapter": "lora"}),
    (16, 8, 2048, {"adapter": "qlora"}),
)


@pytest.mark.parametrize(("card", "batch", "length", "settings"), _TRAININGS)
def test_the_first_remedy_is_the_one_that_plan_names(
    monkeypatch: pytest.MonkeyPatch, card: float, batch: int, length: int, settings: dict[str, Any]
) -> None:
    case, remedies = _asked(monkeypatch, card, batch, length, **settings)
    assert case.training is not None and case.total is not None
    plan = Search(
        base_of(case.training),
        None,
        Simulated(case.total - (case.needed or 0), sets.ClosedForm(case)),
        offers=lambda change: offered(case, change),
        adapt=lambda config: completed(case, config),
    ).answer()
    first = remedies[0]
    assert plan.fitting and "borderline" not in (first.note or "")
    (named, _), *_ = plan.fitting
    assert first.key == "+".join(change.key for change in named.changes)


def test_what_is_too_close_to_the_limit_is_never_first_if_something_surely_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = 0
    for card in range(24, 62):
        _, remedies = _asked(monkeypatch, card, 4, 2048)
        enough = [remedy for remedy in remedies if remedy.enough]
        close = ["borderline" in (remedy.note or "") for remedy in enough]
        if {*close} == {True, False}:
            seen += close.index(True) > 0
            assert not close[0], (card, enough[0].change)
    assert seen


def test_the_optimizer_in_the_backward_pass_comes_before_another_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, remedies = _asked(monkeypatch, 28, 1, 2048)
    keys = [remedy.key for remedy in remedies if remedy.enough]
    first = next(number for number, key in enumerate(keys) if "optimizer_in_backward" in key)
    assert all("lora" not in key for key in keys[:first])
    assert "register_post_accumulate_grad_hook" in remedies[first].lines["pytorch"]


def test_where_nothing_fits_little_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    whole = Case.whole

    def count(case: Case, training: Any) -> Any:
        counted.append(1)
        return whole(case, training)

    monkeypatch.setattr(Case, "whole", count)
    given = Given(model=llama(), micro_batch_size=96, sequence_length=131072)
    found = answer(phase="loss", frames=OWN_LOOP, given=given, event_capacity_bytes=gib(1))
    assert found.no_way is not None and found.no_way.startswith("No change of the training fits")
    assert len(counted) < 400


def test_trl_s_own_loss_in_chunks_is_proposed_where_trl_computes_the_loss() -> None:
    trl = Frame("/x/site-packages/trl/trainer/sft_trainer.py", 9, "compute_loss", "outputs = model")
    given = Given(model=llama(), micro_batch_size=8, sequence_length=4096)
    found = answer(phase="loss", frames=(trl,), given=given, event_capacity_bytes=gib(80))
    (chunked,) = (remedy for remedy in found.remedies if remedy.key == "chunked")
    assert "chunked_nll" in chunked.lines["trl"]
    other = answer(phase="loss", frames=OWN_LOOP, given=given, event_capacity_bytes=gib(80))
    assert all(remedy.key != "chunked" for remedy in other.remedies)


@pytest.mark.parametrize(
    ("mixture", "settings", "first"),
    [(True, {}, True), (True, {"quantization": "int8"}, False), (False, {}, False)],
)
def test_experts_in_one_tensor_are_quantized_first(
    mixture: bool, settings: dict[str, Any], first: bool
) -> None:
    experts = {"num_local_experts": 64, "num_experts_per_tok": 2, "intermediate_size": 2048}
    model = replace(
        llama(**experts, model_type="gpt_oss") if mixture else llama(), model_type="gpt_oss"
    )
    given = Given(model=model, settings={"method": "qlora", "quantization": "nf4", **settings})
    found = answer(phase="load", frames=OWN_LOOP, given=given, event_capacity_bytes=gib(24))
    assert ("quantized_experts" in [remedy.key for remedy in found.remedies[:1]]) is first
