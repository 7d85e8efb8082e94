"""The peak that a run is allowed to have: `--max-peak`, for scripts that watch over memory."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.errors import ExitCode
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import MaxPeak
from oomdoctor.units import parse_limit


def judged(report: Report, allowed: str | None) -> Report:
    """The report with the allowed peak, and the exit code for it if the command ended well.

    It is 3 above the allowed peak, and 6 where the peak may be higher than the run showed.
    """
    device = report.device
    peaks = [size for rank in report.ranks if (size := rank.peak_device_bytes) is not None]
    if allowed is None or device is None or not peaks:
        return report
    limit = MaxPeak(parse_limit(allowed, device.total_bytes), max(peaks))
    report = replace(report, max_peak=limit)
    if report.exit_code:
        return report
    sure = report.unknown_sizes is None or report.unknown_sizes.is_sure
    code = ExitCode.NO if limit.above_bytes else ExitCode.OK if sure else ExitCode.INCONCLUSIVE
    return replace(report, exit_code=code)
