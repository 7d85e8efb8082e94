"""The answer about the rung of --from, from a search and from rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from analysis_make import GIB, measurement, result

from oomdoctor.analysis.changes.faster import to_run, to_speed_up
from oomdoctor.analysis.changes.search import Verdict
from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import TABLE
from oomdoctor.commands.devices.cards import room_for
from oomdoctor.commands.ladder.your_changes import (
    Simulation,
    Tried,
    fastest_first,
    no_answer,
    offered,
    search_yours,
    simulate_faster,
)
from oomdoctor.commands.plan.changes import answer_fits, answer_runs
from oomdoctor.records.codec import loads
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.job.result import Failure, ProbeResult
from oomdoctor.records.report.user_training import UserTraining

TRAINING = Path(__file__).parents[2] / "data" / "stacks" / "user_training.json"
OWN = TrainConfig(micro_batch_size=4, sequence_length=512)


def simulation(row_of: Callable[[ChangeSet], ProbeResult]) -> Simulation:
    """The simulation of a card with 23 GiB."""
    return cast("Simulation", SimpleNamespace(row=row_of, usable_bytes=23 * GIB))


def training(config: TrainConfig = OWN) -> UserTraining:
    return replace(loads(UserTraining, TRAINING.read_text()), config=config)


def row(outcome: str = "oom", gib: int = 60, **settings: object) -> ProbeResult:
    config = replace(OWN, **settings)  # type: ignore[arg-type]
    peak = gib * GIB
    measured = measurement(peak, overhead_bytes=GIB // 2)
    return replace(
        result("yours", outcome), config=config, peak_device_bytes=peak, measurement=measured
    )


class Judge:
    """Says that every set needs so much, and those with some changes less."""

    usable_bytes = 23 * GIB

    def __init__(self, gib: int, **less: int) -> None:
        self.gib, self.less = gib, less
        self.asked: list[ChangeSet] = []

    def judge(self, sets: Sequence[ChangeSet]) -> list[Verdict | None]:
        self.asked += sets
        return [self._one(one) for one in sets]

    def _one(self, one: ChangeSet) -> Verdict:
        gib = min([self.gib, *(self.less[key] for key in one.keys if key in self.less)])
        return Verdict("fits" if gib <= 23 else "short", gib * GIB)

    def least_bytes(self, config: TrainConfig) -> int:
        return 0

    def needs_more(self, more: TrainConfig, less: TrainConfig) -> bool:
        return False


def test_changes_are_shown_in_the_order_of_what_they_cost_with_their_lines() -> None:
    judge = Judge(30, adamw_8bit=20, checkpointing=21, lora=5)
    found = search_yours(training(), row(), judge)  # type: ignore[arg-type]

    def row_of(one: ChangeSet) -> ProbeResult:
        return replace(row("fits", 20), config=one.config)

    answer = answer_fits(training(), row(), found, simulation(row_of), lambda _: None)
    words = [change.change for change in answer.changes]
    assert words == ["activation checkpointing", "8-bit AdamW"]
    assert all(change.lines and change.rung.startswith("yours,") for change in answer.changes)
    assert answer.reason is None and set(words) < set(answer.tried)


def test_if_nothing_fits_the_smallest_is_named_with_the_cards_that_would_do() -> None:
    found = search_yours(training(), row(), Judge(40, adamw_8bit=26))  # type: ignore[arg-type]
    card_for = partial(room_for, own="8.9", headroom=0.05)

    def row_of(one: ChangeSet) -> ProbeResult:
        return replace(row(gib=26), config=one.config)

    answer = answer_fits(training(), row(), found, simulation(row_of), card_for)
    assert answer.changes == () and answer.reason is not None
    assert "8-bit AdamW needs the least, 26.0 GiB, short by 3.00 GiB; " in answer.reason
    assert answer.reason.endswith(
        "smallest card: NVIDIA GeForce RTX 5090 with it, NVIDIA H100 PCIe as it is"
    )


def test_only_what_the_files_can_hold_is_offered() -> None:
    offers, _ = offered(training(), OWN)
    keys = {change.key for change in TABLE if offers(change)}
    assert {"smaller_batch", "checkpointing", "adamw_8bit", "expandable_segments"} <= keys
    assert "shard" not in keys  # it trains on one GPU


def test_lora_names_the_layers_where_peft_does_not_take_all() -> None:
    targets = ("in_proj", "x_proj")
    _, adapt = offered(training(), OWN, targets)
    assert OWN.method == "full"
    assert adapt(replace(OWN, method="lora")).lora_targets == targets
    assert adapt(replace(OWN, method="lora", lora_targets=("q_proj",))).lora_targets == ("q_proj",)
    assert offered(training(), OWN)[1](replace(OWN, method="lora")).lora_targets == "all-linear"


def test_only_what_is_faster_by_more_than_the_error_counts() -> None:
    changes = to_speed_up(row("fits", activation_checkpointing="full").config)[:3]
    speeds = dict(zip((one.words for one in changes), (101.0, 150.0, 200.0), strict=True))

    def simulate(asked: Sequence[ChangeSet]) -> list[Tried]:
        return [(one, replace(row("fits"), tokens_per_s=speeds[one.words])) for one in asked]

    found, tried = simulate_faster(changes, simulate, 100.0)
    assert [one.words for one, _ in found] == [changes[2].words, changes[1].words]
    assert len(tried) == 3


def test_of_changes_too_close_to_call_the_leaner_goes_first() -> None:
    def estimated(rate: float, gib: int) -> ProbeResult:
        return replace(
            row("fits", gib), tokens_per_s=rate, tokens_per_s_spread=0.2, speed_state="estimated"
        )

    rows = {"fat": estimated(1000.0, 20), "lean": estimated(950.0, 5), "slow": estimated(300.0, 1)}
    changed = to_speed_up(replace(OWN, activation_checkpointing="full"))[0]
    tried = [(replace(changed, config=each.config), each) for each in rows.values()]
    order = [each for _, each in fastest_first(tried)]
    assert order == [rows["lean"], rows["fat"], rows["slow"]]


@pytest.mark.parametrize("outcome", ["failed", "crashed", "timed_out", "host_oom"])
def test_a_rung_that_says_nothing_about_memory_is_not_changed(outcome: str) -> None:
    ended = result("yours", outcome)
    fixed = replace(ended, config=ended.config.with_micro_batch(1))
    assert no_answer(fixed) == (ended.reason or "it did not run")
    assert no_answer(replace(fixed, outcome="oom", failure=None)) is None
    late = replace(fixed, outcome="skipped", failure=Failure("not_reached", "x"), reason="late")
    assert no_answer(late) == "late"
    searched = replace(
        fixed, outcome="oom", failure=None, config=ended.config.with_micro_batch(AUTO)
    )
    assert "micro-batch size" in (no_answer(searched) or "")


def test_what_costs_time_is_taken_back() -> None:
    slow = replace(OWN, activation_checkpointing="full", attention="eager",
                   optimizer="paged_adamw_8bit", offload="activations")  # fmt: skip
    found = {one.words: one.config for one in to_speed_up(slow)}
    assert found["no activation checkpointing"].activation_checkpointing == "none"
    assert found["SDPA attention"].attention == "sdpa"
    assert found["fused AdamW"].optimizer == "adamw_torch_fused"
    assert found["no offload"].offload == "none"
    assert found["another micro-batch"].micro_batch_size == AUTO
    assert not any(config_faults(one.with_micro_batch(1)) for one in found.values())
    losses = {one.words for one in to_speed_up(OWN)}
    assert {"Liger's loss", "TRL's loss in chunks"} <= losses
    assert "Liger's loss" not in {one.words for one in to_speed_up(replace(OWN, loss="liger"))}


def test_a_missing_package_is_gone_around() -> None:
    assert [one.words for one in to_run(replace(OWN, loss="liger"))] == ["the usual loss"]
    both = to_run(replace(OWN, loss="liger", attention="flash_attention_2"))
    assert both[-1].words == "the usual loss and SDPA attention"
    assert (both[-1].config.loss, both[-1].config.attention) == ("default", "sdpa")
    assert to_run(OWN) == ()
    refused = row("unsupported", loss="liger")
    (one,) = to_run(refused.config)
    answer = answer_runs(training(), refused, [(one, row("fits"))])
    assert (answer.aim, [change.change for change in answer.changes]) == ("fits", [one.words])
    assert answer_runs(training(), refused, [(one, refused)]).aim is None
