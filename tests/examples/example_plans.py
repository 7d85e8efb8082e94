"""Plans to render. Every number here is invented, to look plausible; none was predicted."""

from __future__ import annotations

from dataclasses import replace

from example_gpu import gpu_report
from example_parts import config, fits, measurement, request, result

from oomdoctor.commands.plan.picks import pick, price_of, with_costs
from oomdoctor.records.job.measurement import OomEvent, Timing
from oomdoctor.records.job.result import PredictedPeak, ProbeResult, Try
from oomdoctor.records.job.simulation import Allocation, PhasePeak
from oomdoctor.records.job.step_time import PartTime, StepPart, StepTime
from oomdoctor.records.report.plan import (
    ByteRange,
    CardPicks,
    CardPlan,
    CardPrice,
    Faster,
    FasterChange,
    FormulaTerm,
    FormulaView,
    PlanRemedy,
    PlanRequest,
    PriceList,
    Sweep,
    SweepAnswer,
    SweepLine,
    SweptPeak,
    Why,
)
from oomdoctor.records.report.report import Budget, Picks, Report, SurveyRequest
from oomdoctor.records.report.searched import SolveAnswer, SolveLine
from oomdoctor.records.report.warnings import warning
from oomdoctor.units import GIB, KIB, MIB

_MODEL = "meta-llama/Llama-3.1-8B"
_ESTIMATED = Timing(0.41, 0.25, 1.92, 0.3, 2.33, 0, 0, "estimated")


def card(name: str, gigabytes: int, fitting: int, picks: CardPicks) -> CardPlan:
    """A card that reports 500 MiB less than it is sold with."""
    total = gigabytes * GIB - 500 * MIB
    return CardPlan(
        name=name,
        compute_capability="8.9",
        memory_bytes=gigabytes * GIB,
        total_bytes=total,
        total_source="the advertised size minus the most that Linux drivers keep (500 MiB)",
        headroom_bytes=round(total * 0.02),
        usable_bytes=total - round(total * 0.02),
        context=ByteRange(300 * MIB, 395 * MIB, 540 * MIB, "2.25 KiB per resident thread"),
        fitting=fitting,
        rungs=4,
        picks=picks,
    )


def rows() -> tuple[ProbeResult, ...]:
    """Four rungs on a card of 24 GiB: one of each outcome of a plan."""
    lora = config(method="lora", activation_checkpointing="full")
    qlora = config(method="qlora", quantization="nf4", activation_checkpointing="full")
    timed = measurement(round(22.8 * GIB), timing=_ESTIMATED, losses=(), memory_stats={})
    full = result(
        "full-bf16",
        config(micro_batch_size=1),
        outcome="oom",
        evidence="predicted",
        micro_batch_size=1,
        gradient_accumulation_steps=32,
        peak_device_bytes=round(75.4 * GIB),
        peak_phase="backward",
        missed_by_bytes=round(52.4 * GIB),
        measurement=measurement(round(75.4 * GIB), timing=None, losses=()),
        oom=OomEvent("CUDA out of memory.", "torch", "forward", requested_bytes=56 * MIB),
        tries=(Try(1, "oom", round(75.4 * GIB), None, "needs 75.4 GiB"),),
        reason="needs 75.4 GiB, short by 52.4 GiB",
    )
    close = fits(
        lora, 4, round(22.8 * GIB), 5312.0, 0.284, evidence="predicted", measured=timed, notes=()
    )
    plain = fits(
        qlora,
        8,
        round(14.2 * GIB),
        3105.0,
        0.284,
        evidence="predicted",
        measured=measurement(round(14.2 * GIB), timing=_ESTIMATED, losses=()),
    )
    liger = result(
        "lora-r16+ckpt+liger",
        replace(lora, loss="liger"),
        outcome="unsupported",
        evidence="predicted",
        micro_batch_size=1,
        reason="needs Liger kernels: pip install liger-kernel; lower bound 15.0 GiB",
    )
    return full, close, liger, plain


def near() -> ProbeResult:
    """A rung that is closer to the limit than the error of the prediction."""
    timed = measurement(round(22.9 * GIB), timing=_ESTIMATED, losses=(), memory_stats={})
    found = fits(
        config(method="lora"),
        1,
        round(22.9 * GIB),
        5512.0,
        0.284,
        evidence="predicted",
        measured=timed,
        notes=("borderline: predictions like this are off by up to 2.0%",),
    )
    return replace(found, borderline=True)


def plan_report() -> Report:
    """A plan for one card."""
    full, close, liger_row, plain = rows()
    results = (full, close, near(), liger_row, plain)
    target = card("NVIDIA GeForce RTX 4090", 24, 2, CardPicks(pick(full), pick(close), pick(plain)))
    liger = PlanRemedy(
        method="full",
        key=full.key,
        label=full.label,
        change="Liger's loss",
        frees_bytes=round(53.5 * GIB),
        peak_device_bytes=None,
        basis="arithmetic",
        rung="method=full,loss=liger",
        reason=None,
    )
    shorter = replace(
        liger,
        change="sequence length 1,664",
        frees_bytes=round(52.9 * GIB),
        peak_device_bytes=round(22.5 * GIB),
        basis="simulated",
        rung="method=full,sequence_length=1664",
    )
    target = replace(target, remedies=(liger, shorter))
    base = gpu_report()
    assert base.machine is not None
    return replace(
        base,
        command="plan",
        elapsed_s=14.2,
        run_dir="/home/ada/.local/state/oomdoctor/runs/20260102-030405-llama-3.1-8b-p1",
        request=_request(results, PlanRequest(("NVIDIA GeForce RTX 4090",))),
        machine=replace(
            base.machine,
            gpu_name=target.name,
            gpu_uuid=None,
            total_bytes=target.total_bytes,
            compute_capability="8.9",
            driver_version=None,
            slurm_job_id=None,
            other_processes=(),
        ),
        budget=Budget(
            target.total_bytes, None, target.total_bytes, target.headroom_bytes, target.usable_bytes
        ),
        results=results,
        ranking=(close.key, plain.key),
        ranking_reasons={
            close.key: "the fastest of 2",
            plain.key: "0.58x the speed of the fastest",
        },
        picks=Picks(None, close.key, plain.key),
        next_commands=("oomdoctor show --verbose",),
        next_on_gpu=(f"oomdoctor probe {_MODEL} --recipe default",),
        warnings=(),
        cards=(target,),
    )


def verified_report() -> Report:
    """The plan for one card, its two best rungs checked on the emulated card; one does not fit."""
    base = plan_report()
    full, close, _, liger, plain = base.results
    missed = replace(
        close,
        evidence="emulated",
        outcome="oom",
        micro_batch_size=1,
        gradient_accumulation_steps=32,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        peak_device_bytes=None,
        tokens_per_s=None,
        tokens_per_s_spread=None,
        samples_per_s=None,
        measurement=None,
        breakdown=None,
        oom=OomEvent("CUDA out of memory.", "torch", "backward", requested_bytes=56 * MIB),
        predicted=PredictedPeak(None, None, round(22.8 * GIB)),
        notes=(),
    )
    checked = replace(
        plain,
        evidence="emulated",
        speed_state="estimated",
        predicted=PredictedPeak(None, None, round(14.3 * GIB)),
    )
    results = (full, missed, liger, checked)
    request = _request(results, PlanRequest(("NVIDIA GeForce RTX 4090",), verify=True))
    return replace(
        base,
        request=request,
        results=results,
        ranking=(checked.key,),
        ranking_reasons={checked.key: "the fastest of 1"},
        picks=Picks(None, None, checked.key),
    )


def cards_report() -> Report:
    """A plan for three cards, one row each."""
    full, close, liger, plain = rows()
    bound = replace(pick(liger), missed_by_bytes=round(3.6 * GIB), by_formula=True)
    speechless = replace(pick(plain), tokens_per_s=None, tokens_per_s_spread=None)
    report = plan_report()
    assert report.machine is not None
    return replace(
        report,
        request=_request((), PlanRequest((), all_gpus=True, sort="speed")),
        machine=replace(report.machine, gpu_name=None, compute_capability=None),
        budget=None,
        results=(),
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        cards=(
            card("NVIDIA GeForce RTX 4090", 24, 2, CardPicks(pick(full), pick(close), pick(plain))),
            card("NVIDIA RTX A5000", 24, 2, CardPicks(pick(full), pick(close), pick(plain))),
            card("NVIDIA L4", 24, 1, CardPicks(pick(full), None, speechless)),
            card("Tesla T4", 16, 0, CardPicks(pick(full), bound, None)),
            card("12.0 GiB", 12, 0, CardPicks(pick(full), bound, None)),
        ),
        warnings=(warning("no_card", sizes=["12.0 GiB"], by_peak=False),),
    )


def prices_report() -> Report:
    """The same cards with a price list."""
    report = cards_report()
    prices = PriceList(
        source="prices.csv",
        currency="$",
        prices=(
            CardPrice("NVIDIA GeForce RTX 4090", 0.44, "4090"),
            CardPrice("NVIDIA L4", 0.8, "L4"),
            CardPrice("Tesla T4", 0.35, "T4"),
        ),
        unknown=("Voodoo 2",),
    )
    plan = PlanRequest((), all_gpus=True, sort="cost", prices=prices)
    return replace(
        report,
        request=_request((), plan),
        cards=tuple(
            replace(
                target,
                price_per_hour=price_of(target.name, prices),
                picks=with_costs(target.picks, price_of(target.name, prices)),
            )
            for target in report.cards
        ),
        warnings=(warning("prices", "unknown", source=prices.source, names=prices.unknown),),
    )


def sweep_report() -> Report:
    """Two rungs at five sequence lengths on two cards, one of them beyond a simulation."""
    values = (512, 1024, 2048, 4096, 8192)
    cards = cards_report().cards[2::-2]
    lines = []
    for target in cards:
        needed = [round(GIB * (8 + value / 256)) for value in values]
        peaks = tuple(
            SweptPeak(value, size, size <= target.usable_bytes)
            for value, size in zip(values, needed, strict=True)
        )
        lines.append(SweepLine(target.name, "a1", "lora-r16+ckpt", 1, peaks, 2048, 3840, None))
        unknown = tuple(SweptPeak(value, None, None) for value in values)
        why = "aten::nonzero: the size of its result depends on data"
        lines.append(SweepLine(target.name, "b2", "full-bf16", 1, unknown, None, None, why))
    sweep = Sweep("sequence_length", values)
    return replace(
        cards_report(),
        request=_request((), PlanRequest(tuple(c.name for c in cards), sweep=sweep)),
        cards=tuple(replace(target, picks=CardPicks(None, None, None)) for target in cards),
        sweep=SweepAnswer("sequence_length", values, tuple(lines)),
        warnings=(),
    )


def solve_report() -> Report:
    """The longest sequences: an answer, an answer at the model's limit, a bound, and none."""
    base = sweep_report()
    plan = PlanRequest(tuple(card.name for card in base.cards), solve="sequence_length")
    lines = []
    for target in base.cards:
        found = SolveLine(
            card=target.name,
            key="a1",
            label="lora-r16+ckpt",
            micro_batch_size=1,
            sequence_length=3328,
            effective_batch_size=16,
            largest=3328,
            peak_device_bytes=target.usable_bytes - 300 * MIB,
            next_value=3456,
            next_peak_device_bytes=target.usable_bytes + 278 * MIB,
            next_missed_by_bytes=278 * MIB,
            limited_by=None,
            reason=None,
            rung="method=lora,activation_checkpointing=full,sequence_length=3328",
        )
        whole = replace(
            found,
            key="c3",
            label="qlora-nf4-r16+ckpt",
            largest=131_072,
            next_value=None,
            next_peak_device_bytes=None,
            next_missed_by_bytes=None,
            limited_by="the model's 131,072 positions",
        )
        none = replace(
            whole,
            key="b2",
            label="full-bf16",
            micro_batch_size=None,
            largest=None,
            peak_device_bytes=None,
            next_missed_by_bytes=20 * GIB,
            limited_by=None,
            reason="needs at least 44.9 GiB, short by 20.0 GiB: weights 15.0 GiB",
            rung=None,
        )
        unknown = replace(
            none,
            key="d4",
            label="lora-r16+unsloth",
            next_missed_by_bytes=None,
            reason="needs a GPU: Unsloth cannot be simulated",
        )
        lines += [found, whole, none, unknown]
    return replace(
        base,
        request=_request((), plan),
        sweep=None,
        solve=SolveAnswer("sequence_length", tuple(lines)),
    )


def why_report() -> Report:
    """One rung taken apart."""
    base = plan_report()
    rung = base.results[0]
    parts = {
        "weights": 15 * GIB,
        "gradients": 15 * GIB,
        "optimizer": 30 * GIB,
        "activations": 12 * GIB,
        "logits": 3 * GIB,
        "inputs": 96 * KIB,
        "temporary": 16 * MIB,
    }
    largest = (
        Allocation(112 * MIB, 192, "optimizer", "aten::zeros_like", "model.layers.*.mlp.down_proj"),
        Allocation(112 * MIB, 32, "gradients", "aten::mm", "model.layers.*.mlp.down_proj"),
        Allocation(GIB, 1, "logits", "aten::_log_softmax", ""),
        Allocation(8 * MIB, 1, "temporary", "cublas", ""),
    )
    loading = {**dict.fromkeys(parts, 0), "weights": 15 * GIB}
    phases = (
        PhasePeak("load", "load", 15 * GIB, loading, largest[1:]),
        PhasePeak("first", "forward", 42 * GIB, {**parts, "optimizer": 0}, largest),
        PhasePeak("steady", "backward", sum(parts.values()), parts, largest),
    )
    speed = 5000.0
    step_s = 16 * 2048 / speed
    shares: dict[StepPart, dict[str, float]] = {
        "products": {"forward": 0.2, "backward": 0.4},
        "attention": {"forward": 0.02, "backward": 0.05},
        "memory": {"forward": 0.1, "backward": 0.15, "optimizer": 0.06},
        "host": {"optimizer": 0.02},
    }
    step_parts = tuple(
        PartTime(
            part, step_s * sum(of.values()), {phase: step_s * share for phase, share in of.items()}
        )
        for part, of in shares.items()
    )
    changes = (
        FasterChange("no activation checkpointing", "method=full", 1, 16, 60 * GIB, 1.4 * speed,
                     1.4, too_close=False),
        FasterChange("micro-batch size 2", "method=full,micro_batch_size=2", 2, 8, 80 * GIB,
                     1.05 * speed, 1.05, too_close=True),
    )  # fmt: skip
    count = 8_030_261_248
    terms = (
        FormulaTerm("weights", 2.0, count, 2 * count, 15 * GIB),
        FormulaTerm("gradients", 2.0, count, 2 * count, 15 * GIB),
        FormulaTerm("optimizer states", 4.0, count, 4 * count, 30 * GIB),
        FormulaTerm("activations", None, None, None, 12 * GIB),
        FormulaTerm("logits", None, None, None, 3 * GIB),
        FormulaTerm("inputs", None, None, None, 0),
    )
    why = Why(
        label=rung.label,
        micro_batch_size=1,
        peak_allocated_bytes=sum(parts.values()),
        peak_reserved_bytes=round(75.6 * GIB),
        context_bytes=395 * MIB,
        peak_device_bytes=round(76 * GIB),
        phases=phases,
        formula=FormulaView(
            terms=terms,
            formula_bytes=8 * count,
            rule_bytes=16 * count,
            rule_error=0.57,
            remarks=("16 bytes are for float32; here weights are bfloat16",),
        ),
        step=StepTime(step_s, 16, step_parts, "compute", 41_000),
        mfu=0.42,
        faster=Faster(changes, ("no activation checkpointing", "another micro-batch", "SDPA")),
    )
    return replace(
        base,
        request=_request((rung,), PlanRequest(("NVIDIA GeForce RTX 4090",), why=rung.label)),
        results=(rung,),
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        why=why,
    )


def _request(results: tuple[ProbeResult, ...], plan: PlanRequest) -> SurveyRequest:
    return replace(request(_MODEL, results, vram=None), device="cuda", plan=plan)


PLANS = {
    "plan": plan_report,
    "plan-verify": verified_report,
    "plan-cards": cards_report,
    "plan-prices": prices_report,
    "plan-sweep": sweep_report,
    "plan-solve": solve_report,
    "plan-why": why_report,
}
