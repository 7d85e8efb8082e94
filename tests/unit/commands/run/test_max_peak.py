"""`--max-peak`: the exit code says whether a run needs more than it may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_runs import depends_on_values, fits, ran_out

from oomdoctor.commands.run.max_peak import judged
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.units import GIB, parse_limit

PEAK = max(rank.peak_device_bytes or 0 for rank in fits().ranks)


@pytest.mark.parametrize(("allowed", "code"), [(PEAK, 0), (PEAK - 1, 3), ("99%", 0), ("1%", 3)])
def test_a_run_above_the_limit_is_a_no(allowed: int | str, code: int) -> None:
    report = judged(fits(), str(allowed))
    assert (report.exit_code, report.status) == (code, "ok")
    assert report.max_peak is not None and report.max_peak.peak_bytes == PEAK
    text = render_report(report, "table", Style(width=100))
    assert ("Above --max-peak" in text.splitlines()[0]) is bool(code)
    assert "Allowed" in text


def test_what_may_need_more_than_it_showed_is_not_within_the_limit() -> None:
    report = depends_on_values()
    assert report.unknown_sizes is not None and report.unknown_sizes.is_sure
    assert judged(report, "999GiB").exit_code == 0
    unsure = replace(report, unknown_sizes=replace(report.unknown_sizes, upper_bytes=None))
    assert judged(unsure, "999GiB").exit_code == 6
    assert judged(unsure, "1MiB").exit_code == 3


def test_a_command_that_failed_keeps_its_exit_code() -> None:
    assert judged(ran_out(), "1MiB").exit_code == ran_out().exit_code != 0
    assert judged(fits(), None) == fits()
    assert judged(replace(fits(), ranks=()), "1MiB").exit_code == 0


def test_a_limit_is_a_size_or_a_share_of_the_card() -> None:
    assert parse_limit("20GiB", 0) == 20 * GIB
    assert parse_limit(" 80% ", 10 * GIB) == 8 * GIB
    for text in ("110%", "much", "-1GiB"):
        with pytest.raises(ValueError):
            parse_limit(text, GIB)
