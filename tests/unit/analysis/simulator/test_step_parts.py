"""The parts of a step's time: they add up to it, whatever it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_work import ADD, BUSY, IDLE, taken_apart

from oomdoctor.analysis.simulator.step_parts import Engine
from oomdoctor.analysis.simulator.timing import Work
from oomdoctor.analysis.speed.hosts import COMPILED


@pytest.mark.parametrize(
    ("work", "engine", "waits"),
    [
        (BUSY, Engine(), {}),
        (IDLE, Engine(), {}),
        (replace(IDLE, host=COMPILED), Engine(), {}),
        (BUSY, Engine(), {"micro": 0.2, "update": 0.1}),
        (BUSY, Engine(0.25), {"update": 0.1}),
        (BUSY, Engine(0.0, 0.7), {"micro": 0.01, "update": 0.1}),
    ],
)
def test_parts_and_phases_add_up_to_the_step(
    work: Work, engine: Engine, waits: dict[str, float]
) -> None:
    step, timing = taken_apart(work, engine=engine, **waits)
    assert step.seconds == 4 * timing.micro_step_s + timing.optimizer_step_s
    assert sum(of.seconds for of in step.parts) == pytest.approx(step.seconds, rel=1e-9)
    for of in step.parts:
        assert sum(of.by_phase.values()) == pytest.approx(of.seconds) and of.seconds > 0
    by_part = {of.part: of for of in step.parts}
    links = by_part["communication"].seconds if "communication" in by_part else 0.0
    assert links == pytest.approx(4 * waits.get("micro", 0.0) + waits.get("update", 0.0))


def test_each_kernel_is_in_the_part_of_its_kind() -> None:
    step, _ = taken_apart(BUSY)
    by_part = {of.part: of for of in step.parts}
    assert set(by_part) == {"products", "attention", "memory", "copies"}
    assert set(by_part["memory"].by_phase) == {"forward", "backward", "optimizer"}
    assert set(by_part["attention"].by_phase) == {"forward"}
    products = by_part["products"].by_phase
    assert products["backward"] == pytest.approx(2 * products["forward"])
    assert step.launches == 4 * 37 + 2


def test_a_step_of_tiny_kernels_waits_for_the_host() -> None:
    step, _ = taken_apart(IDLE)
    host = next(of for of in step.parts if of.part == "host")
    assert step.bound == "launch" and host.seconds > step.seconds / 2
    # It launches at an even rate, and twice as much in the backward pass.
    assert host.by_phase["backward"] == pytest.approx(host.by_phase["forward"] * 1000 / 501)


def test_a_compiled_step_waits_less_for_the_host_and_is_less_certain() -> None:
    step, timing = taken_apart(replace(IDLE, host=COMPILED))
    eager, known = taken_apart(IDLE)
    waits = [next(of for of in each.parts if of.part == "host").seconds for each in (step, eager)]
    assert waits[0] < waits[1] / 2
    assert timing.optimizer_step_s == known.optimizer_step_s  # it runs in eager mode
    assert timing.micro_step_spread == pytest.approx(1.5 * (known.micro_step_spread or 0.0))


@pytest.mark.parametrize(
    ("work", "engine", "waits", "bound"),
    [
        (BUSY, Engine(), {}, "compute"),
        (Work([(ADD, 99)], [(ADD, 99)], [(ADD, 9)]), Engine(), {}, "bandwidth"),
        (BUSY, Engine(), {"micro": 9.0}, "communication"),
        (BUSY, Engine(0.0, 9.0), {}, "launch"),
    ],
)
def test_the_bound_is_what_takes_most(
    work: Work, engine: Engine, waits: dict[str, float], bound: str
) -> None:
    assert taken_apart(work, engine=engine, **waits)[0].bound == bound
