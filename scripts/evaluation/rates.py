"""How far are predicted times from those that others published, and is their order right?

    python scripts/evaluation/rates.py --recordings FOLDER
    python scripts/evaluation/rates.py --only kernels
    python scripts/evaluation/rates.py --recordings FOLDER --launched NOTES \
        --write tests/data/judged_rates.json

Predicts every row of tests/data/published_rates.jsonl, single kernels and training runs, or says
why it has no prediction. Runs whose code launched.py ran on the emulated GPU are timed by what they
launched; the others are simulated. Prints, by kind of kernel and of model, source, card and trust:
the median error of the speed, the share within 30 %, and the share whose published time lies in the
predicted interval; then Kendall's tau-b within each source, card, model and number of GPUs, over
pairs more than 5 % apart, the worst rows, and what was left out. Rows of low trust judge nothing.
Rows that include more than training (loading of data, evaluations, the first steps) are bounds:
their time is at least the predicted one. Their order counts, because within a set all include the
same. Recordings are kept in FOLDER, so a second call takes seconds; the first takes about five
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cases.case import LeftOut
from cases.kernel_rates import judged_kernels
from cases.launched_rates import judged_launches
from cases.rated import Judged, judged_rates
from cases.rates import FILE, Rate, rows_of, training_rates
from figures.errors import percent
from figures.ranks import Agreement, agreement

from oomdoctor.render.words import counted

NEAR = 0.3  # an error up to this is small
APART = 0.05
WORST = 12  # rows that are named
_FEWEST = 3  # rows that have an order
Key = Callable[[Judged], str]


def main() -> int:
    """Predict, print, write what was asked for."""
    options = parse_options()
    judged: list[Judged] = []
    left_out: list[LeftOut] = []
    with tempfile.TemporaryDirectory() as folder:
        for answer in _answers(options, options.recordings or Path(folder)):
            (left_out if isinstance(answer, LeftOut) else judged).append(answer)  # type: ignore[arg-type]
    summary = summary_of(judged, left_out)
    if options.json:
        print(json.dumps(summary | {"rows": [_row(each) for each in judged]}, indent=2))
    else:
        print_summary(summary)
    if options.write is not None:
        options.write.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 0 if judged else 4


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="kernels, training, or part of a row's id")
    parser.add_argument("--published", type=Path, default=FILE, help="file of published rows")
    parser.add_argument("--recordings", type=Path, help="folder that keeps recordings")
    parser.add_argument("--launched", type=Path, help="what launched.py kept: those rows ran")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="write the summary here, for the docs")
    return parser.parse_args()


def _answers(options: argparse.Namespace, folder: Path) -> Iterable[Judged | LeftOut]:
    only = set(options.only or ("kernels", "training"))
    words = only - {"kernels", "training"}
    rows = [
        row
        for row in rows_of(options.published)
        if any(word in row["id"] for word in words)
        or ("training" if row["kind"] == "train" else "kernels") in only
    ]
    if options.launched is not None:
        ran = list(judged_launches(rows, options.launched))
        yield from ran
        rows = [row for row in rows if row["id"] not in {each.id for each in ran}]
    yield from judged_kernels(rows)
    expressed = list(training_rates(rows))
    yield from (each for each in expressed if isinstance(each, LeftOut))
    rates = [each for each in expressed if isinstance(each, Rate)]
    folder.mkdir(parents=True, exist_ok=True)
    yield from judged_rates(
        rates, folder, options.processes, lambda name: print(f"{name} done", file=sys.stderr)
    )


def summary_of(judged: Sequence[Judged], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """Everything that the tables show."""
    counted = [each for each in judged if each.counts]
    training = [each for each in counted if each.kind == "training"]
    bounds = [each for each in judged if each.bound and each.trust != "low"]
    return {
        "kinds": _figures(counted, lambda each: each.kind),
        "families": _figures(training, lambda each: each.family),
        "sources": _figures(training, lambda each: each.source),
        "cards": _figures(training, lambda each: each.gpu),
        "trust": _figures(
            [each for each in judged if each.kind == "training" and not each.bound],
            lambda each: each.trust,
        ),
        "low_trust": sum(each.trust == "low" for each in judged),
        "bounds": {
            "rows": len(bounds),
            "kept": sum(each.predicted_s <= each.measured_s for each in bounds),
            "if_counted": _figures([*training, *bounds], lambda each: each.kind),
        },
        "orders": _orders([*training, *bounds]),
        "worst": [_row(each) for each in sorted(counted, key=_badness)[-WORST:][::-1]],
        "left_out": dict(Counter(each.reason for each in left_out).most_common()),
    }


def _badness(judged: Judged) -> float:
    """How many times as long, either way."""
    ratio = judged.measured_s / judged.predicted_s
    return max(ratio, 1 / ratio)


def _figures(judged: Iterable[Judged], key: Key) -> list[dict[str, Any]]:
    groups: dict[str, list[Judged]] = {}
    for each in judged:
        groups.setdefault(key(each), []).append(each)
    return [
        {
            "name": name,
            "rows": len(group),
            "signed_median": round(statistics.median(each.error for each in group), 4),
            "absolute_median": round(statistics.median(abs(each.error) for each in group), 4),
            "near": round(sum(abs(each.error) <= NEAR for each in group) / len(group), 4),
            "covered": round(sum(each.is_covered for each in group) / len(group), 4),
        }
        for name, group in sorted(groups.items())
    ]


def _orders(judged: Iterable[Judged]) -> dict[str, Any]:
    """Tau within each source, card, model and number of GPUs, and over all these pairs."""
    surveys: dict[tuple[str, ...], dict[str, list[Judged]]] = {}
    for each in judged:
        survey = surveys.setdefault(
            (each.source, each.gpu, each.model, counted(each.gpus, "GPU")), {}
        )
        survey.setdefault(each.settings, []).append(each)
    agreements = {
        name: agreement(
            [_speed(group, lambda each: each.predicted_s) for group in survey.values()],
            [_speed(group, lambda each: each.measured_s) for group in survey.values()],
            least=APART,
        )
        for name, survey in surveys.items()
        if len(survey) >= _FEWEST
    }
    whole = Agreement(*map(sum, zip(*map(_counts, agreements.values()), strict=True)))
    return {
        "tau_b": _rounded(whole.tau_b),
        "surveys": len(agreements),
        "lowest": sorted(
            (
                {"name": ", ".join(name), "rows": len(surveys[name]), "tau_b": _rounded(each.tau_b)}
                for name, each in agreements.items()
                if each.tau_b is not None
            ),
            key=lambda row: row["tau_b"],
        )[:WORST],
    }


def _speed(group: Sequence[Judged], seconds: Callable[[Judged], float]) -> float:
    """Tokens a second of a configuration: the median of its rows."""
    return statistics.median(each.tokens / seconds(each) for each in group)


def _counts(each: Agreement) -> tuple[int, int, int, int]:
    return each.concordant, each.discordant, each.tied_predicted, each.tied_measured


def _rounded(tau: float | None) -> float | None:
    return None if tau is None else round(tau, 3)


def _row(each: Judged) -> dict[str, Any]:
    return {
        "id": each.id,
        "kind": each.kind,
        "gpu": each.gpu,
        "trust": each.trust,
        "predicted_s": float(f"{each.predicted_s:.4g}"),
        "measured_s": float(f"{each.measured_s:.4g}"),
        "error": round(each.error, 4),
        "spread": round(each.spread, 4),
    }


def print_summary(summary: dict[str, Any]) -> None:
    """The tables of a summary."""
    for name in ("kinds", "families", "sources", "cards", "trust"):
        print(f"\n{name:50} {'rows':>5} {'signed':>9} {'absolute':>9} {'< 30%':>6} {'covered':>8}")
        for row in summary[name]:
            print(
                f"{row['name']:50} {row['rows']:>5} {percent(row['signed_median']):>9} "
                f"{percent(row['absolute_median'], sign=False):>9} {row['near']:>6.0%} "
                f"{row['covered']:>8.0%}"
            )
    bounds, orders = summary["bounds"], summary["orders"]
    print(f"\nbounds kept: {bounds['kept']} of {bounds['rows']}")
    print(f"tau-b {orders['tau_b']} in {orders['surveys']} surveys")
    for row in orders["lowest"]:
        print(f"  {row['name']:70} {row['rows']:>4} {row['tau_b']:>7}")
    for row in summary["worst"]:
        print(f"worst: {row['id']:60} {row['gpu']:30} {percent(row['error']):>10}")
    for reason, count in summary["left_out"].items():
        print(f"left out, {count}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
