"""Which rungs of a plan are checked on the emulated card; the verdict of the check wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis_make import request as survey_request
from plan_make import measured

from oomdoctor.commands.devices.cards import cards_of
from oomdoctor.commands.plan import verify as module
from oomdoctor.commands.plan.findings import Findings
from oomdoctor.commands.plan.verify import Checker, verify
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.measurement import OomEvent, Timing
from oomdoctor.records.job.model import ModelRef, ModelSpec, ParameterCounts
from oomdoctor.records.job.result import Attempt, Inspection, ProbeJob
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.system.store import run_folders

SPEC = ModelSpec("m", "local", "M", "m", "causal-lm", {})
BASE = TrainConfig(sequence_length=512, effective_batch_size=2)
FAST, SLOW = Rung("fast", BASE), Rung("slow", replace(BASE, activation_checkpointing="full"))
PLAN = PlanRequest(("L4",), verify=True)
CARD = cards_of(PLAN, 0.0)[0]
ROOM = CARD.usable_bytes


def attempt(rung: Rung, size: int, peak: int, step_s: float | None = None) -> Attempt:
    timing = None if step_s is None else Timing(step_s, 0.2, 0.1, 0.2, 1.0, 0, 0, "estimated")
    found = replace(measured(peak), timing=timing, peak_reserved_bytes=peak - 100)
    outcome = "fits" if peak <= ROOM else "oom"
    return Attempt(rung.config.with_micro_batch(size), outcome, found, None, None, None, 0.0)


def known(peaks: dict[Rung, tuple[int, int]]) -> Findings:
    """A plan whose rungs were predicted at the micro-batch sizes 1 and 2; the first is fastest."""
    request = survey_request(
        model=ModelRef("m"),
        recipe=Recipe("r", "", tuple(peaks), "command line"),
        device="cuda",
        headroom=0.0,
        sequence_length=512,
        effective_batch_size=2,
        rung_limit_s=60.0,
        plan=PLAN,
    )
    found = Findings(request, SPEC, (CARD,))
    counts = ParameterCounts(10**6, 10**6, 0, 0, 0)
    found.set_limits(Inspection("M", counts, None, {}, None, None, None, None))
    for place, (rung, (one, two)) in enumerate(peaks.items(), 1):
        tried = (attempt(rung, 1, one, 0.2 * place), attempt(rung, 2, two, 0.3 * place))
        found.attempts[CARD.name, rung.config.key()] = tried
    return found


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[tuple[str, int]]]:
    """Verify a plan on a card that answers as told; what ran, in order."""

    def run(plan: Findings, peaks: dict[tuple[str, int], int | str]) -> list[tuple[str, int]]:
        ran = []

        def launch(host: Any, job: ProbeJob, folder: Path, **_: Any) -> tuple[Attempt, None]:
            size = job.config.micro_batch_size
            assert isinstance(size, int) and not job.timed
            ran.append((job.label, size))
            peak = peaks[job.label, size]
            if isinstance(peak, str):
                return Attempt(job.config, "crashed", None, None, None, peak, 1.0), None
            if peak <= ROOM:
                return replace(attempt(FAST, size, peak), config=job.config), None
            oom = OomEvent("CUDA out of memory.", "cuda_caching_allocator", "backward")
            return Attempt(job.config, "oom", None, oom, None, None, 1.0), None

        monkeypatch.setattr(module, "launch", launch)
        folder = run_folders.create("m")
        verify(plan, Checker(None, folder, lambda event: None, lambda: False))  # type: ignore[arg-type]
        return ran

    return run


def test_only_the_best_of_a_method_is_checked(check: Any) -> None:
    plan = known({FAST: (ROOM // 4, ROOM // 2), SLOW: (ROOM // 8, ROOM // 4)})
    assert check(plan, {("fast", 2): ROOM // 2 + 512}) == [("fast", 2)]
    fast, slow = plan.rows(CARD)
    assert (fast.evidence, slow.evidence) == ("emulated", "predicted")
    assert fast.peak_device_bytes == ROOM // 2 + 512
    assert fast.predicted is not None
    assert fast.predicted.peak_device_bytes == ROOM // 2
    assert (fast.speed_state, fast.tokens_per_s is not None) == ("estimated", True)
    assert fast.notes == ()


def test_what_is_close_to_the_limit_is_checked_too(check: Any) -> None:
    plan = known({FAST: (ROOM // 4, ROOM // 2), SLOW: (ROOM - 100, 2 * ROOM)})
    key = CARD.name, SLOW.config.key()
    plan.attempts[key] = tuple(
        replace(one, borderline="borderline: by 2%" if one.outcome == "fits" else None)
        for one in plan.attempts[key]
    )
    ran = check(plan, {("fast", 2): ROOM // 2, ("slow", 1): ROOM - 50})
    assert ran == [("fast", 2), ("slow", 1)]


def test_the_check_wins_and_what_is_then_best_is_checked(check: Any) -> None:
    plan = known({FAST: (ROOM // 4, ROOM // 2), SLOW: (ROOM // 8, ROOM // 4)})
    ran = check(plan, {("fast", 2): 2 * ROOM, ("fast", 1): 2 * ROOM, ("slow", 2): ROOM // 4})
    assert ran == [("fast", 2), ("fast", 1), ("slow", 2)]
    fast, slow = plan.rows(CARD)
    assert (fast.outcome, slow.outcome) == ("oom", "fits")
    assert fast.notes[0] == "predicted to fit at micro-batch 2"


def test_a_smaller_size_may_still_fit(check: Any) -> None:
    plan = known({FAST: (ROOM // 4, ROOM // 2)})
    check(plan, {("fast", 2): 2 * ROOM, ("fast", 1): ROOM // 4})
    (fast,) = plan.rows(CARD)
    assert (fast.outcome, fast.micro_batch_size, fast.max_micro_batch_size) == ("fits", 1, 1)


def test_a_check_that_breaks_leaves_the_prediction_with_a_warning(check: Any) -> None:
    plan = known({FAST: (ROOM // 4, ROOM // 2)})
    check(plan, {("fast", 2): "killed by SIGSEGV"})
    (fast,) = plan.rows(CARD)
    assert fast.evidence == "predicted"
    (warning,) = plan.warnings
    assert warning.code == "not_checked"
    assert "killed by SIGSEGV" in warning.message
