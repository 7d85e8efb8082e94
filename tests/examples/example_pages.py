"""Reports that are hard to draw: curves, hostile names, extreme values, many rungs. Invented."""

from __future__ import annotations

from dataclasses import replace

from example_gpu import gpu_report
from example_plans import plan_report

from oomdoctor.analysis.memory.curve import memory_curve, stretches
from oomdoctor.records.job.measurement import Breakdown, MemoryCurve
from oomdoctor.records.job.result import PredictedPeak, ProbeResult, Try
from oomdoctor.records.report.report import Report
from oomdoctor.units import GIB, MIB

EVIL = "<img src=x onerror=document.title='ran'><script>document.title='ran'</script>&\ud800$x_1$"


def curve(peak: int) -> MemoryCurve:
    """Weights, then activations and logits that come and go in two steps."""
    step = [("activations", 2 * GIB), ("logits", peak - 6 * GIB), ("logits", -(peak - 6 * GIB)),
            ("gradients", GIB), ("activations", -2 * GIB), ("inputs", 3 * MIB),
            ("inputs", -3 * MIB), ("gradients", -GIB)]  # fmt: skip
    told = [("weights", 4 * GIB), *step, *step]
    windows = [(0, "load", "load")]
    for number, name in enumerate(("first", "steady")):
        windows += [(1 + 8 * number, name, "forward"), (3 + 8 * number, name, "backward"),
                    (6 + 8 * number, name, "optimizer")]  # fmt: skip
    changes, names = [size for _, size in told], [name for name, _ in told]
    return memory_curve(changes, names, stretches(windows, len(told)))


def followed() -> Report:
    """A plan whose rungs have curves; the first that fits has the highest peak."""
    report = plan_report()
    return replace(
        report,
        results=tuple(
            replace(one, measurement=replace(one.measurement, curve=curve((20 - number) * GIB)))
            if one.measurement is not None
            else one
            for number, one in enumerate(report.results)
        ),
    )


def everything() -> Report:
    """A probe with every outcome and every kind of chart that a probe has."""
    report = gpu_report()

    def more(number: int, one: ProbeResult) -> ProbeResult:
        peak = one.peak_device_bytes
        if one.measurement is None or peak is None:
            return one
        return replace(
            one,
            measurement=replace(one.measurement, curve=curve((20 - number) * GIB)),
            predicted=PredictedPeak(None, None, round(peak * (0.9 + number / 20))),
        )

    return replace(
        report, results=tuple(more(number, one) for number, one in enumerate(report.results))
    )


def hostile() -> Report:
    """Every text is markup."""
    report = everything()
    assert report.model is not None and report.machine is not None
    return replace(
        report,
        results=tuple(
            replace(one, label=f"{EVIL}{number}", reason=EVIL, notes=(EVIL,))
            for number, one in enumerate(report.results)
        ),
        run_dir=EVIL,
        next_commands=(EVIL,),
        model=replace(report.model, id=EVIL),
        machine=replace(report.machine, gpu_name=EVIL, versions={EVIL: EVIL}),
    )


def extreme() -> Report:
    """Peaks of a byte and of an exbibyte, speeds of nearly nothing and of billions."""
    report = everything()
    sizes, speeds = (1, 1 << 60, 23 * GIB), (1e-9, 4e12, 100.0)
    fitting = [one for one in report.results if one.measurement is not None]
    changed = {}
    for one, size, speed in zip(fitting, sizes, speeds, strict=False):
        assert one.measurement is not None
        parts = Breakdown(size, 0, 0, 0, 0, 0)
        changed[one.key] = replace(
            one,
            peak_allocated_bytes=size,
            peak_reserved_bytes=size,
            peak_device_bytes=size,
            breakdown=parts,
            tokens_per_s=speed,
            tokens_per_s_spread=9.0,
            tries=(Try(1, "fits", size, speed, None),),
            predicted=PredictedPeak(None, None, 1 << 50),
        )
    return replace(report, results=tuple(changed.get(one.key, one) for one in report.results))


def sixty() -> Report:
    """Sixty rungs that fit, with long labels, all nearly alike."""
    report = followed()
    first = next(one for one in report.results if one.outcome == "fits")
    assert first.peak_device_bytes is not None and first.tokens_per_s is not None
    rungs = tuple(
        replace(
            first,
            key=f"key{number}",
            label=f"lora-r{number}+a-rather-long-label-of-a-rung-with-every-setting+ckpt{number}",
            peak_device_bytes=first.peak_device_bytes + number * 64 * MIB,
            tokens_per_s=first.tokens_per_s * (1 + number / 90),
        )
        for number in range(60)
    )
    return replace(report, results=rungs, ranking=tuple(one.key for one in rungs))


PAGES = {
    "everything": everything,
    "followed": followed,
    "hostile": hostile,
    "extreme": extreme,
    "sixty": sixty,
}
