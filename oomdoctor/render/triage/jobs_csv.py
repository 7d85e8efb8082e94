"""The answer of `triage` as CSV: a row a group with --by, else a row a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from oomdoctor.records.report import Report
from oomdoctor.records.slurm.triage import TriagedJob, TriageGroup


def triage_rows(report: Report) -> Iterator[list[Any]]:
    """The header, then the rows. Headings are the keys in JSON."""
    found = report.triage
    grouped = found is not None and found.by is not None
    names = [field.name for field in fields(TriageGroup if grouped else TriagedJob)]
    yield names
    if found is not None:
        for one in found.groups if grouped else found.jobs:
            yield [getattr(one, name) for name in names]
