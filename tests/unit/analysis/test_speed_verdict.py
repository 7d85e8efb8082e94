"""Which times may be compared, and which load of others is in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_make import fit, gpu_facts, request, result, timing

from oomdoctor.analysis.search.ladder import Context
from oomdoctor.analysis.speed_verdict import disturbed, disturbing, settled, speed_of, tf32_notes
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import Load

CONFIG = TrainConfig(micro_batch_size=1, effective_batch_size=1)


@pytest.mark.parametrize(
    ("stopped_by", "steps", "spread", "expected"),
    [
        ("spread", 5, 0.02, True),
        ("estimated", 0, 0.3, True),
        ("step_limit", 20, 0.09, True),
        ("step_limit", 20, 0.12, False),
        ("time_limit", 3, 0.05, True),
        ("time_limit", 2, 0.05, False),
        ("time_limit", 1, None, False),
    ],
)
def test_what_settled(stopped_by, steps, spread, expected):
    times = replace(timing(spread=spread), stopped_by=stopped_by, timed_steps=steps)
    assert settled(times, CONFIG) is expected


@pytest.mark.parametrize(
    ("cpus", "threads", "foreign", "gpu", "expected"),
    [
        (2, 2, 0.1, None, False),
        (2, 2, 0.3, None, True),
        (2, 1, 1.0, None, False),  # the other core is free for others
        (2, 1, 1.2, None, True),
        (64, 32, 30.0, None, False),
        (64, 32, 40.0, None, True),
        (8, 1, None, None, False),
        (8, 1, 0.0, 0.05, False),
        (8, 1, 0.0, 0.4, True),
    ],
)
def test_what_others_take_matters_if_the_worker_needs_it(cpus, threads, foreign, gpu, expected):
    assert disturbed(Load(cpus, threads, 1.0, foreign, gpu)) is expected


@pytest.mark.parametrize(
    ("changes", "capability", "said"),
    [
        ({"weights_dtype": "float32"}, "8.0", None),
        ({"weights_dtype": "float32"}, None, None),
        ({"weights_dtype": "float32"}, "7.5", "the card has no TF32"),
        ({"weights_dtype": "float32", "autocast_dtype": "bfloat16"}, "8.0", "are in bfloat16"),
        ({"weights_dtype": "float16"}, "7.5", "are in float16"),
        ({"method": "lora"}, "8.0", None),  # its adapters are in float32
    ],
)
def test_tf32_without_an_effect_is_noted(changes, capability, said):
    gpu = replace(gpu_facts(), compute_capability=capability)
    assert tf32_notes(TrainConfig(**changes), gpu) == ()
    notes = tf32_notes(TrainConfig(**changes, tf32=True), gpu)
    assert len(notes) == (said is not None)
    assert (said or "") in "".join(notes)


def test_a_row_has_the_note_whether_its_times_are_estimated_or_measured():
    config = replace(CONFIG, weights_dtype="float32", tf32=True)
    turing = replace(gpu_facts(), compute_capability="7.5")
    context = Context("cuda", None, None, usable_bytes=1 << 30, gpu=turing)
    for stopped_by in ("spread", "estimated"):
        times = replace(timing(spread=0.01), stopped_by=stopped_by)
        measured = fit(config, 1, times=times).measurement
        speed = speed_of(measured, config, context, request())
        assert any("no TF32" in note for note in speed.notes), stopped_by


def test_without_figures_nothing_is_said():
    assert not disturbed(None)
    assert disturbing([result("a"), result("b", "oom")]) == []


def test_loads_that_disturb_are_reported():
    def row(foreign):
        times = replace(timing(), load=Load(4, 4, 1.0, foreign))
        return result("row", measurement=fit(CONFIG, 1, times=times).measurement)

    found = disturbing([row(0.1), row(1.5), row(2.5)])
    assert [load.foreign_cpus for load in found] == [1.5, 2.5]
