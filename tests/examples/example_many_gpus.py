"""Plans for several GPUs to render. Every number here is invented; none was predicted."""

from __future__ import annotations

from dataclasses import replace

from example_parts import config, measurement, result
from example_plans import card, plan_report

from oomdoctor.records.job.measurement import RankPeak
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.plan import CardPicks, PlanRequest
from oomdoctor.records.report.report import Budget, Picks, Report
from oomdoctor.records.report.searched import FewestAnswer, FewestLine, GpuRange, GpuTry
from oomdoctor.units import GIB

_CARD = "NVIDIA H100 80GB HBM3"


def _rows() -> tuple[ProbeResult, ...]:
    """Three rungs on eight GPUs: one fits, one needs more, and one is simulated."""
    sharded = config(sharding="fsdp", world_size=8, effective_batch_size=16)
    peak = round(71.5 * GIB)
    ran = measurement(peak, timing=None, losses=(), ranks=(RankPeak(0, peak, peak),))
    first = result(
        "full-bf16+ckpt+fsdp",
        sharded.with_micro_batch(2),
        evidence="emulated",
        micro_batch_size=2,
        gradient_accumulation_steps=1,
        peak_allocated_bytes=ran.peak_allocated_bytes,
        peak_reserved_bytes=ran.peak_reserved_bytes,
        peak_device_bytes=peak,
        peak_phase="backward",
        phases=ran.phases,
        max_micro_batch_size=2,
        fastest_micro_batch_size=2,
        measurement=ran,
        ranks=ran.ranks,
        host_peak_bytes=9 * GIB,
    )
    missed = result(
        "full-bf16+ckpt+zero3",
        replace(sharded, sharding="zero3"),
        outcome="oom",
        evidence="emulated",
        micro_batch_size=1,
        gradient_accumulation_steps=2,
        peak_device_bytes=147 * GIB,
        missed_by_bytes=round(69.4 * GIB),
        measurement=measurement(147 * GIB, timing=None, losses=()),
        reason="it ran, but its peak of 147 GiB exceeds the usable 77.6 GiB by 69.4 GiB",
    )
    skipped = result(
        "full-bf16+ckpt+ddp",
        replace(sharded, sharding="ddp"),
        outcome="skipped",
        evidence="predicted",
        missed_by_bytes=448 * GIB,
        reason="needs at least 526 GiB, short by 448 GiB: weights 131 GiB, gradients 131 GiB",
    )
    return first, missed, skipped


def sharded_report() -> Report:
    """A plan for eight GPUs of one card."""
    base, results = plan_report(), _rows()
    target = card(_CARD, 80, 1, CardPicks(None, None, None))
    assert base.machine is not None and base.request is not None
    recipe = replace(base.request.recipe, name="sharded", rungs=())
    return replace(
        base,
        request=replace(
            base.request,
            plan=PlanRequest((_CARD,)),
            gpus=8,
            effective_batch_size=16,
            recipe=recipe,
            rank_by="memory",
        ),
        machine=replace(base.machine, gpu_name=_CARD, total_bytes=target.total_bytes, gpus=8),
        budget=Budget(
            target.total_bytes, None, target.total_bytes, target.headroom_bytes, target.usable_bytes
        ),
        results=results,
        ranking=(results[0].key,),
        ranking_reasons={},
        picks=Picks(results[0].key, None, None),
        cards=(target,),
    )


def fewest_report() -> Report:
    """The fewest GPUs: an answer with what one fewer misses, and two rungs without one."""
    base = sharded_report()
    assert base.request is not None
    found = FewestLine(
        card=_CARD,
        key="a1",
        label="full-bf16+ckpt+fsdp",
        gpus=9,
        effective_batch_size=18,
        micro_batch_size=1,
        peak_device_bytes=round(75.2 * GIB),
        host_peak_bytes=None,
        fewer=8,
        fewer_missed_by_bytes=round(5.4 * GIB),
        evidence="emulated",
        reason=None,
        rung="method=full,sharding=fsdp,world_size=9",
        tries=(
            GpuTry(8, False, 83 * GIB, round(5.4 * GIB)),
            GpuTry(9, True, round(75.2 * GIB), None),
        ),
    )
    none = replace(
        found,
        key="b2",
        label="full-bf16+ckpt+ddp",
        gpus=None,
        effective_batch_size=None,
        micro_batch_size=None,
        peak_device_bytes=None,
        fewer=64,
        fewer_missed_by_bytes=448 * GIB,
        evidence=None,
        reason="on 64 GPUs, each needs at least 526 GiB, short by 448 GiB",
        rung=None,
        tries=(),
    )
    unknown = replace(
        none, key="c3", label="odd", fewer_missed_by_bytes=None, reason="not in the range of --gpus"
    )
    plan = PlanRequest((_CARD,), fewest=GpuRange(1, 64))
    return replace(
        base,
        request=replace(base.request, plan=plan, gpus=64),
        machine=None if base.machine is None else replace(base.machine, gpus=64),
        budget=None,
        results=(),
        ranking=(),
        picks=Picks(None, None, None),
        fewest=FewestAnswer(1, 64, (found, none, unknown)),
    )


MANY_GPUS = {"plan-gpus": sharded_report, "plan-gpus-min": fewest_report}
