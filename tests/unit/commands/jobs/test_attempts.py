"""What a reply says of an attempt."""

from __future__ import annotations

from tiny_models import tiny_job

from oomdoctor.commands.jobs.launch import attempt_of
from oomdoctor.records.job.result import Reply


def test_a_reply_without_its_measurement_does_not_fit() -> None:
    found = attempt_of(tiny_job(), Reply("measured"), 1.0, None)
    assert (found.outcome, found.measurement) == ("failed", None)
    assert found.failure is not None and found.reason == "unknown: no reason given"
