"""A measurement on the CPU: phases, breakdown, budget, and an out-of-memory in each phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_configs import CONFIGS
from tiny_models import tiny_job

from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.worker.__main__ import main
from oomdoctor.worker.answer import answer_here
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile


def measured(job: ProbeJob) -> Measurement:
    return measure(job, PhaseFile(None))


def test_phases_steps_and_breakdown_agree() -> None:
    result = measured(tiny_job("dense"))
    assert set(result.phases) == {"load", "forward", "backward", "optimizer"}
    assert set(result.first_step) == set(result.steady) == {"forward", "backward", "optimizer"}
    assert result.peak_allocated_bytes == max(
        memory.peak_allocated_bytes for memory in result.phases.values()
    )
    assert result.phases[result.peak_phase].peak_allocated_bytes == result.peak_allocated_bytes
    parts = result.breakdown
    assert parts is not None
    assert (
        parts.weights_bytes
        + parts.gradients_bytes
        + parts.optimizer_bytes
        + parts.activations_bytes
        + parts.logits_bytes
        + parts.other_bytes
        == result.peak_allocated_bytes
    )
    # fp32 AdamW: two states of the weights' size, and the rotary buffers beside the weights.
    assert parts.weights_bytes == pytest.approx(4 * result.parameters, abs=1024)
    assert parts.optimizer_bytes == pytest.approx(8 * result.parameters, rel=0.01)
    # The steady step has the optimizer states from its beginning, the first step not yet.
    assert (
        result.steady["forward"].peak_allocated_bytes
        - result.first_step["forward"].peak_allocated_bytes
        >= 8 * result.parameters
    )
    assert result.peak_reserved_bytes is None
    assert result.peak_device_bytes is None
    assert result.attention_kernel == "sdpa: flash (CPU)"


@pytest.mark.parametrize("changes", [{}, {"method": "lora", "effective_batch_size": 4}])
def test_the_curve_leads_to_the_peak(changes: dict[str, object]) -> None:
    result = measured(tiny_job("dense", **changes))
    curve, parts = result.curve, result.breakdown
    assert curve is not None and parts is not None
    assert curve.allocated_bytes[curve.peak] == result.peak_allocated_bytes
    at_peak = {name: sizes[curve.peak] for name, sizes in curve.by_category.items()}
    assert sum(at_peak.values()) == result.peak_allocated_bytes
    for name in ("weights", "gradients", "optimizer", "activations", "logits"):
        assert at_peak.get(name, 0) == getattr(parts, f"{name}_bytes")
    ends = [*(phase.moment for phase in curve.phases[1:]), len(curve.event)]
    seen: dict[tuple[str, str], int] = {}
    for phase, end in zip(curve.phases, ends, strict=True):
        top = max(curve.allocated_bytes[phase.moment : end])
        seen[phase.step, phase.phase] = max(top, seen.get((phase.step, phase.phase), 0))
    for step, phases in (("first", result.first_step), ("steady", result.steady)):
        for name, memory in phases.items():
            # A phase may begin at the highest sum that is alive in it.
            assert seen[step, name] <= memory.peak_allocated_bytes
    assert result.peak_allocated_bytes in seen.values()


def test_measuring_twice_gives_the_same_bytes() -> None:
    first, second = measured(tiny_job("dense")), measured(tiny_job("dense"))
    assert first.phases == second.phases
    assert first.breakdown == second.breakdown
    assert first.losses == second.losses


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_is_measured(kind: str) -> None:
    result = measured(tiny_job(kind, job_evaluate=True, job_eval_batch_size=2))
    assert result.phases["eval"].peak_allocated_bytes > 0
    assert result.timing is not None
    assert result.timing.micro_step_s > 0
    assert loads(Measurement, dumps(result)) == result


def test_techniques_save_what_they_promise() -> None:
    plain = measured(tiny_job("dense", sequence_length=128))
    lean = measured(tiny_job("dense", sequence_length=128, activation_checkpointing="full"))
    assert plain.breakdown and lean.breakdown
    assert lean.breakdown.activations_bytes < plain.breakdown.activations_bytes
    half = measured(tiny_job("dense", weights_dtype="bfloat16"))
    assert half.breakdown
    assert half.breakdown.weights_bytes < 0.51 * plain.breakdown.weights_bytes + 1024
    lora = measured(tiny_job("dense", method="lora", lora_rank=2))
    assert lora.trainable_parameters < lora.parameters / 5
    assert lora.breakdown
    assert lora.breakdown.optimizer_bytes < plain.breakdown.optimizer_bytes / 4


def test_accumulation_keeps_gradients_through_the_next_forward() -> None:
    once = measured(tiny_job("dense", micro_batch_size=2, effective_batch_size=2))
    twice = measured(tiny_job("dense", micro_batch_size=2, effective_batch_size=8))
    difference = (
        twice.steady["forward"].peak_allocated_bytes - once.steady["forward"].peak_allocated_bytes
    )
    assert difference >= 4 * once.parameters


def test_timing_stops_for_a_stated_reason() -> None:
    timing = measured(tiny_job("dense", job_max_timed_steps=2, job_spread_target=0.0)).timing
    assert timing is not None
    assert timing.stopped_by == "step_limit"
    assert timing.timed_steps == 2
    hurried = measured(tiny_job("dense", job_timing_limit_s=0.0, job_spread_target=0.0)).timing
    assert hurried is not None
    assert hurried.stopped_by == "time_limit"
    easy = measured(tiny_job("dense", job_spread_target=100.0, job_max_timed_steps=8)).timing
    assert easy is not None
    assert easy.stopped_by == "spread"


def test_an_out_of_memory_names_its_phase() -> None:
    """The same job under a falling budget runs out in each phase in turn."""
    job = tiny_job("dense", micro_batch_size=4, effective_batch_size=4, sequence_length=16)
    peaks = measured(job)
    first = {name: memory.peak_allocated_bytes for name, memory in peaks.first_step.items()}
    load = peaks.phases["load"].peak_allocated_bytes
    budgets = {
        "load": load - 1,
        "forward": first["forward"] - 1,
        "backward": first["backward"] - 1,
        "optimizer": first["optimizer"] - 1,
    }
    assert load < first["forward"] < first["backward"] < first["optimizer"]
    for phase, budget in budgets.items():
        limited = tiny_job(
            "dense",
            micro_batch_size=4,
            effective_batch_size=4,
            sequence_length=16,
            job_budget_bytes=budget,
        )
        reply = answer_here(limited, PhaseFile(None))
        assert reply.status == "oom", phase
        assert reply.oom is not None
        assert reply.oom.phase == phase
        assert reply.oom.capacity_bytes is not None
        assert reply.oom.capacity_bytes == pytest.approx(budget, rel=0.01)
    assert (
        answer_here(tiny_job("dense", job_budget_bytes=10**9), PhaseFile(None)).status == "measured"
    )


def test_an_exception_of_the_model_is_a_failed_reply() -> None:
    job = tiny_job("dense", job_mode="measure", sequence_length=0)
    reply = answer_here(job, PhaseFile(None))
    assert reply.status in ("failed", "unsupported")


def test_an_unknown_architecture_is_unsupported() -> None:
    from dataclasses import replace

    job = tiny_job("dense")
    spec = replace(job.model, model_type="nonesuch", config={"model_type": "nonesuch"})
    reply = answer_here(replace(job, mode="inspect", model=spec), PhaseFile(None))
    assert reply.status == "unsupported"
    assert "nonesuch" in (reply.reason or "")


@pytest.mark.parametrize("kind", CONFIGS)
def test_inspection_counts_every_parameter_once(kind: str) -> None:
    from dataclasses import replace

    job = tiny_job(kind)
    reply = answer_here(replace(job, mode="inspect"), PhaseFile(None))
    assert reply.inspection is not None
    counts = reply.inspection.parameters
    assert counts.total == counts.linear + counts.embedding + counts.rest
    assert counts.total == measured(job).parameters
    assert (counts.routed_experts > 0) == (kind == "moe")


def test_the_command_writes_the_reply_whole(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(dumps(tiny_job("dense")))
    assert main([str(tmp_path / "job.json"), str(tmp_path / "reply.json")]) == 0
    reply = loads(Reply, (tmp_path / "reply.json").read_text())
    assert reply.status == "measured"
    assert (tmp_path / "reply.phase").read_text().strip() == "timing"
    assert main([]) == 2
