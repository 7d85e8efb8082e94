"""The search over sets of changes: it ends with a set that fits, or with the proof of none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from analysis_make import GIB, measurement, result

from oomdoctor.analysis.changes.search import (
    Search,
    Verdict,
    at_least,
    verdict_of,
    why_nothing_fits,
)
from oomdoctor.analysis.changes.sets import ChangeSet, Lattice, sets_in_order
from oomdoctor.analysis.changes.table import BY_KEY, TABLE, Tier
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.job.measurement import Breakdown

FULL = TrainConfig(micro_batch_size=4, sequence_length=2048)
LORA = replace(FULL, method="lora", activation_checkpointing="full")
DONE = replace(LORA, method="qlora", quantization="nf4", loss="liger", micro_batch_size=1,
               optimizer="paged_adamw_8bit", allocator="expandable_segments")  # fmt: skip
WIDE = replace(FULL, weights_dtype="float32", attention="eager", optimizer="adamw_torch")
DDP = replace(FULL, sharding="ddp", world_size=4, micro_batch_size=2)
ALL = [FULL, LORA, DONE, WIDE, DDP]


@dataclass
class Fake:
    """A judge that asks a function what a configuration needs; some changes are not supported."""

    needs: Callable[[TrainConfig], int]
    usable_bytes: int = 100
    refused: frozenset[str] = frozenset()
    asked: list[ChangeSet] = field(default_factory=list)
    most: int = 10**9
    parts: Callable[[TrainConfig], Breakdown | None] = lambda config: None
    close: frozenset[str] = frozenset()
    rules: bool = False

    def judge(self, sets: Sequence[ChangeSet]) -> list[Verdict | None]:
        return [self._one(one) for one in sets]

    def _one(self, one: ChangeSet) -> Verdict | None:
        if len(self.asked) >= self.most:
            return None
        self.asked.append(one)
        if one.keys & self.refused:
            return Verdict("unsupported", reason="not installed")
        size = self.needs(one.config)
        outcome = "short" if size > self.usable_bytes else "fits"
        if outcome == "fits" and one.keys & self.close:
            outcome = "borderline"
        return Verdict(outcome, size, size, self.parts(one.config), 1)  # type: ignore[arg-type]

    def least_bytes(self, config: TrainConfig) -> int:
        return 0

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        """Every part of the plain model below is at least as large."""
        return self.rules and all(
            getattr(_size(more), name) >= getattr(_size(less), name) for name in Breakdown.__slots__
        )


def every(base: TrainConfig) -> list[ChangeSet]:
    offers, adapt = (lambda change: True), (lambda config: config)
    return [one for tier in Tier for one in Lattice(base, tier, offers, adapt).all()]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("base", [LORA, DONE, replace(LORA, optimizer="sgd")])
def test_nothing_is_said_only_if_no_set_of_the_table_fits(base: TrainConfig, seed: int) -> None:
    """Whatever the sets need, and whatever is not supported."""
    chance = random.Random(seed)
    sets = every(base)
    refused = frozenset(change.key for change in TABLE if chance.random() < 0.2)
    fitting = {chance.choice(sets).config} if seed % 4 else set()
    judge = Fake(lambda config: 90 if config in fitting else 200, refused=refused)
    answer = Search(base, Verdict("short", 200), judge).answer()
    exists = any(one.config in fitting and not one.keys & refused for one in sets)
    assert bool(answer.fitting) == exists
    assert answer.complete
    steps = len({one.config for one in judge.asked})
    assert len(judge.asked) == steps


@pytest.mark.parametrize("base", ALL)
def test_every_set_is_possible_and_belongs_to_one_tier(base: TrainConfig) -> None:
    offers, adapt = (lambda change: True), (lambda config: config)
    for tier in Tier:
        for one in list(Lattice(base, tier, offers, adapt).all())[::7]:
            assert one.tier == tier and one.config != base and not config_faults(one.config)
            groups = [change.group for change in one.changes]
            assert len(groups) == len(set(groups)), one.words
            assert one.words and "{" not in one.words


def _size(config: TrainConfig) -> Breakdown:
    """A plain model of a training of 10 units of weights."""
    full = config.method == "full"
    weights = 3 if config.method == "qlora" else 10
    kept = 1 if config.activation_checkpointing != "none" else 8
    tokens = config.micro_batch_size * config.sequence_length // 512
    states = 0 if config.offload != "none" or "paged" in config.optimizer else 20
    states = 5 if config.optimizer == "adamw_bnb_8bit" else states
    gradients = 0 if config.optimizer_in_backward else 10
    logits = 0 if config.loss != "default" else 3 * tokens
    return Breakdown(weights, gradients if full else 0, states if full else 0, kept * tokens,
                     logits, 0)  # fmt: skip


def _total(config: TrainConfig) -> int:
    parts = _size(config)
    held = 0 if config.allocator == "expandable_segments" else 4
    return (parts.weights_bytes + parts.gradients_bytes + parts.optimizer_bytes + held
            + parts.activations_bytes + parts.logits_bytes + 1)  # fmt: skip


def found(base: TrainConfig, usable: int, **values: object) -> tuple[list[str], Fake]:
    judge = Fake(_total, usable, parts=_size, **values)  # type: ignore[arg-type]
    own = Verdict("short", _total(base), _total(base), _size(base), 1)
    answer = Search(base, own, judge).answer()
    return [one.words for one, _ in answer.fitting], judge


def test_the_cheapest_change_that_is_enough_alone_comes_first() -> None:
    assert _total(FULL) == 221
    assert found(FULL, 217)[0] == ["micro-batch size 2"]
    assert found(replace(FULL, micro_batch_size=1), 85)[0] == ["expandable_segments"]
    assert found(replace(FULL, micro_batch_size=1), 65)[0] == ["activation checkpointing"]


def test_of_several_changes_only_those_remain_that_are_needed() -> None:
    """The dearest are dropped first, and each goes no further than it must."""
    base = replace(FULL, loss="liger")
    assert _total(base) == 173
    words, judge = found(base, 50)
    assert words == ["micro-batch size 1 and activation checkpointing"]
    assert len(judge.asked) < 20
    assert found(base, 54)[0] == ["micro-batch size 2 and activation checkpointing"]


def test_another_effective_batch_comes_before_another_method_and_that_before_shorter_rows() -> None:
    (words,), _ = found(FULL, 22)
    assert "in the backward pass (effective batch size 1)" in words and "LoRA" not in words
    (words,), _ = found(replace(DDP, optimizer="sgd"), 20)
    assert "LoRA" in words and "backward" not in words
    (words,), _ = found(FULL, 9)
    assert "QLoRA" in words and "sequence" not in words
    (words,), _ = found(FULL, 7)
    assert "QLoRA" in words and "sequence length" in words
    nothing, judge = found(FULL, 3)
    assert nothing == [] and len(judge.asked) < 300


def test_byte_estimates_and_rules_keep_the_number_of_judged_sets_small() -> None:
    """As few as a plan can simulate, also where nothing fits."""
    for base in (FULL, LORA):
        for usable in (3, 7, 17, 22, 40, 60, 150):
            _, judge = found(base, usable, rules=True)
            recorded = {one.config.rung_key() for one in judge.asked}
            assert len(recorded) <= 24, (usable, len(recorded))


def test_an_unsupported_change_never_ends_the_search() -> None:
    """Each change that was found is refused, and the next answer does without it."""
    refused: frozenset[str] = frozenset()
    for _ in range(4):
        judge = Fake(_total, 40, refused, parts=_size)
        own = Verdict("short", _total(FULL), _total(FULL), _size(FULL), 1)
        answer = Search(FULL, own, judge).answer()
        assert answer.fitting
        ((one, _),) = answer.fitting
        assert not one.keys & refused
        dearest = max(one.changes, key=TABLE.index)
        refused |= {dearest.key}


def test_what_is_not_supported_is_named_with_the_reason() -> None:
    judge = Fake(_total, 12, frozenset({"liger", "chunked"}), parts=_size)
    answer = Search(
        LORA, Verdict("short", _total(LORA), _total(LORA), _size(LORA), 1), judge
    ).answer()
    assert set(answer.unsupported) <= {"liger", "chunked"}
    assert set(answer.unsupported.values()) == {"not installed"}


def test_a_borderline_set_is_an_answer_only_if_no_other_fits() -> None:
    (words,), _ = found(replace(FULL, micro_batch_size=1), 65, close=frozenset({"checkpointing"}))
    assert "checkpointing" not in words
    every_key = frozenset(BY_KEY)
    (words,), _ = found(DONE, 10, close=every_key)
    assert words


@dataclass
class Exact(Fake):
    """A judge whose bounds are exact, as those of a formula; it counts how often it is asked."""

    bounds: int = 0

    def least_bytes(self, config: TrainConfig) -> int:
        self.bounds += 1
        return self.needs(config)


@pytest.mark.parametrize("base", ALL)
def test_what_is_below_a_hopeless_set_is_not_looked_at(base: TrainConfig) -> None:
    sets = every(base)
    least = min(_total(one.config) for one in sets)
    assert Search(base, None, Exact(_total, least)).answer().fitting
    judge = Exact(_total, least - 1)
    answer = Search(base, None, judge).answer()
    assert answer.complete and not answer.fitting and not judge.asked
    assert judge.bounds < 60 + len(sets) / 2


def test_a_judge_that_stops_proves_nothing() -> None:
    judge = Fake(lambda config: 200, most=2)
    answer = Search(FULL, None, judge).answer()
    assert not answer.fitting and not answer.complete


def test_the_bound_of_a_set_is_never_above_what_it_needs() -> None:
    """For all pairs of sets where one has the changes of the other."""
    chance = random.Random(1)
    sets = [
        one  # of which the plain model below rounds no tokens away
        for one in (ChangeSet((), (), WIDE), *every(WIDE))
        if one.config.micro_batch_size * one.config.sequence_length % 512 == 0
    ]
    for _ in range(1500):
        more, less = chance.choice(sets), chance.choice(sets)
        parts = _size(less.config)
        verdict = Verdict("short", _total(less.config), 0, parts, 1)
        assert at_least(more, less, verdict) <= _total(more.config)


def test_where_nothing_fits_the_answer_says_what_came_nearest() -> None:
    judge = Fake(_total, 3, parts=_size)
    answer = Search(DONE, Verdict("short", _total(DONE)), judge).answer()
    one, verdict = answer.nearest or (None, None)
    assert one is not None and verdict is not None
    text = why_nothing_fits(answer, 3)
    assert text.startswith(f"{one.words} needs the least, ") and "short by" in text
    late = Search(FULL, None, Fake(lambda config: 200, most=2)).answer()
    assert why_nothing_fits(late, 100) == "the search was interrupted"
    judge = Fake(_total, 3)
    judge.least_bytes = lambda config: 10  # type: ignore[method-assign]
    assert "needs at least" in why_nothing_fits(Search(FULL, None, judge).answer(), 3)


def test_a_row_of_a_report_is_a_verdict() -> None:
    measured = measurement(3 * GIB, overhead_bytes=GIB, peak_allocated_bytes=GIB)
    row = replace(result("x"), measurement=measured)
    verdict = verdict_of(row)
    assert (verdict.outcome, verdict.needs_bytes) == ("fits", 3 * GIB)
    assert verdict.tensors_bytes == 2 * GIB
    assert verdict_of(replace(row, borderline=True)).outcome == "borderline"
    assert verdict_of(replace(row, outcome="oom")).outcome == "short"
    assert verdict_of(replace(result("x", "unsupported"), reason="no")).reason == "no"
    skipped = replace(result("x", "skipped"), missed_by_bytes=5)
    assert verdict_of(skipped).outcome == "short"


def test_without_a_judge_single_changes_come_before_all_together() -> None:
    order = list(sets_in_order(FULL))
    singles = [one for one in order if len(one.changes) == 1]
    assert order[0].words == "micro-batch size 1"
    assert [one.tier for one in order] == sorted(one.tier for one in order)
    assert len(singles) > 6


def test_what_peft_casts_can_keep_its_dtype() -> None:
    """Fused experts are not quantized; cast to float32 they take twice as much as in bf16."""
    steps = BY_KEY["uncast_weights"].steps
    qlora = TrainConfig(method="qlora", quantization="nf4")
    assert list(steps(qlora)) == [{"kbit_prepare": "none"}]
    for other in (replace(qlora, kbit_prepare="none"), TrainConfig(method="lora"), TrainConfig()):
        assert list(steps(other)) == []


def test_a_smaller_share_for_vllm_comes_before_what_changes_the_training() -> None:
    grpo = replace(FULL, objective="grpo", vllm_gpu_memory_utilization=0.6)
    asleep = replace(grpo, vllm_enable_sleep_mode=True)
    judge = Fake(lambda config: round(100 * config.vllm_gpu_memory_utilization) + 60)
    (fitting, _), *_ = Search(asleep, None, judge).answer().fitting
    assert fitting.words == "0.3 of the card for vLLM"
    assert not list(BY_KEY["rollout_sleep"].steps(asleep))
    assert list(BY_KEY["rollout_sleep"].steps(grpo)) == [{"vllm_enable_sleep_mode": True}]
    for key in ("rollout_sleep", "engine_share_lower"):
        assert not list(BY_KEY[key].steps(FULL))


def test_what_vllm_gives_back_is_in_no_part_of_a_peak() -> None:
    grpo = replace(FULL, objective="grpo", vllm_gpu_memory_utilization=0.6)
    parts = Breakdown(10, 0, 10, 0, 0, 0)
    own, smaller = ChangeSet((), (), grpo), ChangeSet((BY_KEY["engine_share_lower"],), (0,), grpo)
    verdict = Verdict("short", 120, 120, parts, 100)
    assert at_least(smaller, own, verdict) == 0
    assert at_least(ChangeSet((BY_KEY["adamw_8bit"],), (0,), grpo), own, verdict) == 110


def test_experts_in_one_tensor_can_be_quantized() -> None:
    change = BY_KEY["quantized_experts"]
    qlora = TrainConfig(method="qlora", quantization="nf4")
    assert change.of_experts
    assert list(change.steps(qlora)) == [{"quantize_experts": True}]
    others = (
        replace(qlora, quantize_experts=True),
        replace(qlora, sharding="fsdp", world_size=2),
        replace(qlora, library="unsloth"),
        replace(qlora, lora_target_parameters=("experts.down_proj",)),
        TrainConfig(method="lora"),
    )
    for other in others:
        assert list(change.steps(other)) == []
