"""The tables of the documentation that compare predictions with what others published."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs_tables import folded, table

from oomdoctor.system import catalogue

_DATA = Path(__file__).parents[1] / "tests" / "data"
PUBLISHED_MANY = _DATA / "emulated" / "published_many.json"
JUDGED_RATES = _DATA / "judged_rates.json"


def speed_errors() -> str:
    """How far estimated times were off, by what was slower."""
    rows = [
        (r.compute_capability, r.slower, str(r.count), f"{r.absolute_median:.1%}", f"{r.p95:.1%}")
        for r in catalogue.speed_errors()
    ]
    head = ("compute capability", "slower side", "runs", "median error", "95% within")
    return table(head, rows)


def judged_rates() -> str:
    """Predicted times beside those that others published."""
    summary = json.loads(JUDGED_RATES.read_text(encoding="utf-8"))
    tables = [
        _judged_table(head, summary[name])
        for name, head in (
            ("kinds", "what was timed"),
            ("families", "training runs, by kind of model"),
            ("sources", "training runs, by source"),
            ("cards", "training runs, by card"),
            ("trust", "training runs, by trust"),
        )
    ]
    worst = [
        (
            f"`{row['id']}`",
            row["gpu"],
            f"{row['predicted_s']:.4g}",
            f"{row['measured_s']:.4g}",
            f"{row['error']:+.0%}",
        )
        for row in summary["worst"]
    ]
    head = ("worst row", "card", "predicted, s", "published, s", "speed off by")
    left_out = [(reason, str(count)) for reason, count in summary["left_out"].items()]
    orders, bounds = summary["orders"], summary["bounds"]
    said = (
        "Within a source, card, model and number of GPUs, the predicted order agrees with the "
        f"published one to a\nKendall's tau-b of {orders['tau_b']}, over {orders['surveys']} sets "
        f"of three or more rows. {_lowest_order(orders['lowest'])}{_with_more(**bounds)}"
    )
    kinds, families, *groups = tables
    return "\n\n".join(
        (
            kinds,
            families,
            said,
            folded("Training runs by source, card and trust", "\n\n".join(groups)),
            folded("The worst rows", table(head, worst)),
            folded("Rows without a prediction", table(("left out", "rows"), left_out)),
        )
    )


def _lowest_order(surveys: Sequence[dict[str, Any]]) -> str:
    """The set whose order is the least like the published one."""
    lowest = surveys[0]
    return f"The\nlowest is {lowest['tau_b']}, over {lowest['rows']} rows:\n{lowest['name']}."


def _with_more(rows: int, kept: int, if_counted: Sequence[dict[str, Any]]) -> str:
    """Rows whose time includes more than training should take at least as long as predicted."""
    if not rows:
        return ""
    (counted,) = if_counted
    return (
        f"\n\nIn {rows} rows, the time includes more than training (loading data, evaluations, the "
        f"first steps): {kept} of\nthem took at least as long as predicted. They are not in the "
        f"tables. Were they counted, the median error of\ntraining runs would be "
        f"{counted['absolute_median']:.1%}, with {counted['near']:.0%} within 30%."
    )


def _judged_table(name: str, rows: Sequence[dict[str, Any]]) -> str:
    head = (name, "rows", "median error", "within 30%", "in the interval")
    return table(
        head,
        [
            (
                row["name"],
                str(row["rows"]),
                f"{row['absolute_median']:.1%}",
                f"{row['near']:.0%}",
                f"{row['covered']:.0%}",
            )
            for row in rows
        ],
    )


def published_many() -> str:
    """Trainings on several GPUs that others measured, beside what is predicted."""
    rows: list[tuple[str, ...]] = []
    for row in json.loads(PUBLISHED_MANY.read_text(encoding="utf-8")):
        told = (
            row["id"],
            str(row["world_size"]),
            row["metric"],
            f"{row['measured_bytes'] / 1e9:.2f}",
        )
        if "predicted_bytes" in row:
            error = row["predicted_bytes"] / row["measured_bytes"] - 1
            versions = f"{row['torch']}, {row['transformers']}"
            rows.append((*told, f"{row['predicted_bytes'] / 1e9:.2f}", f"{error:+.1%}", versions))
    head = (
        *("published run", "GPUs", "peak", "measured, GB", "predicted, GB", "difference"),
        "torch, transformers",
    )
    errors = published_errors()
    within = errors[math.ceil(0.95 * len(errors)) - 1]
    figures = (
        f"The median difference of these {len(errors)} runs is {statistics.median(errors):.1%}. "
        f"95% of them are within {within:.1%}; the worst is {errors[-1]:.1%}."
    )
    return f"{table(head, rows)}\n\n{figures}"


def published_errors() -> list[float]:
    """The differences of published jobs on several GPUs, without sign, the smallest first."""
    known = json.loads(PUBLISHED_MANY.read_text(encoding="utf-8"))
    found = [row for row in known if "predicted_bytes" in row]
    return sorted(abs(row["predicted_bytes"] / row["measured_bytes"] - 1) for row in found)


def published_many_left_out() -> str:
    """Published trainings on several GPUs that have no prediction, and why."""
    known = json.loads(PUBLISHED_MANY.read_text(encoding="utf-8"))
    rows = [(row["id"], row["left_out"]) for row in known if "left_out" in row]
    return table(("published run", "why it is left out"), rows)
