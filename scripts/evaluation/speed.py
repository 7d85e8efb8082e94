"""How far are predicted speeds from measured ones, and is their order right?

    python scripts/evaluation/speed.py
    python scripts/evaluation/speed.py --only qwen-7b --json
    python scripts/evaluation/speed.py --write oomdoctor/data/speed_errors.json

Simulates our own GPU runs (tests/data/measured) and runs that others published
(tests/data/published_speed.json) and prints predicted and measured tokens a second with the error,
predicted / measured - 1, then medians and 95th percentiles by stack and method. The order within
each survey, runs of one source on one card, is judged by Kendall's tau-b over pairs that are more
than 5 % apart; `oomdoctor.analysis.ranking` reads how far the errors of one model are apart. Rows
of low trust are shown and judge nothing. The last tables show what would be left of the errors with
one time a micro-step beside the operators, taken from the other models of the same stack
(`speed_rest`). About two minutes on two cores. Exit code 0 when every order is as
wanted, else 3; 4 when no row was left.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cases.case import LeftOut
from cases.measured import FOLDER
from cases.speeds import FILE, Run, Speed, measured_runs, published_runs, speeds_of
from figures.errors import Figures, figures_of, percent, print_figures
from figures.ranks import Agreement, agreement
from figures.speed_rest import with_rest
from old_code.adaptations import ADAPTATIONS
from old_code.kernels import KERNELS

from oomdoctor.system.catalogue import find_gpu

TAU = 0.9  # at least, over pairs that are farther apart than APART
APART = 0.05
Key = Callable[[Speed], tuple[str, ...]]


def main() -> int:
    """Predict, print, write what was asked for, judge."""
    options = parse_options()
    rows = [
        row
        for row in (*measured_runs(options.measured), *published_runs(options.published))
        if not options.only or any(word in row.id for word in options.only)
    ]
    runs = [row for row in rows if isinstance(row, Run)]
    found = speeds_of(runs, processes=options.processes, on_done=_say_progress)
    speeds = [speed for speed in found if speed.fault is None]
    reasons = {row.id: row.reason for row in rows if isinstance(row, LeftOut)}
    reasons |= {speed.run.id: speed.fault for speed in found if speed.fault}
    if options.json:
        print(json.dumps(document(speeds, reasons), indent=2))
    else:
        print_report(speeds, reasons)
    if options.write is not None:
        options.write.write_text(json.dumps(evidence(speeds), indent=2) + "\n")
    if not speeds:
        return 4
    return 3 if any(order["met"] is False for order in orders(speeds)) else 0


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="part of a row's name; repeatable")
    parser.add_argument("--measured", type=Path, default=FOLDER, help="folder of fixtures")
    parser.add_argument("--published", type=Path, default=FILE, help="file of published rows")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="write the errors by kind here")
    return parser.parse_args()


def grouped(speeds: Iterable[Speed], key: Key) -> dict[tuple[str, ...], list[Speed]]:
    """The runs that share a key."""
    groups: dict[tuple[str, ...], list[Speed]] = {}
    for speed in speeds:
        groups.setdefault(key(speed), []).append(speed)
    return dict(sorted(groups.items()))


def figures(speeds: Iterable[Speed], key: Key) -> dict[tuple[str, ...], Figures]:
    """The errors of the runs that count, by key."""
    counted = (speed for speed in speeds if speed.run.counts)
    return {
        name: figures_of([speed.error for speed in group])
        for name, group in grouped(counted, key).items()
    }


def evidence(speeds: Sequence[Speed]) -> list[dict[str, Any]]:
    """The errors by architecture and by what is slower, for `oomdoctor.system.catalogue`."""
    names = ("origin", "compute_capability", "slower")
    return [
        dict(zip(names, kind, strict=True)) | found.document()
        for kind, found in figures(speeds, _kind).items()
    ]


def orders(speeds: Sequence[Speed]) -> list[dict[str, Any]]:
    """How the order within each survey agrees, and within each of its models at one length.

    `met` is None where runs do not count.
    """
    found = []
    for level, key in (("survey", _survey), ("rungs of a model", _rungs)):
        for name, group in grouped(speeds, key).items():
            predicted = [speed.predicted for speed in group]
            measured = [speed.run.tokens_per_s for speed in group]
            errors = [speed.error for speed in group]
            judged = all(speed.run.counts for speed in group)
            far = agreement(predicted, measured, least=APART)
            if far.tau_b is None or len(group) < 3:
                continue
            found.append(
                {
                    "level": level,
                    "name": " ".join(name),
                    "rows": len(group),
                    "all_pairs": _tau(agreement(predicted, measured)),
                    "pairs_apart": _tau(far),
                    "errors_apart": round(max(errors) - min(errors), 4),
                    "met": far.tau_b >= TAU if judged else None,
                }
            )
    return found


def rests(speeds: Sequence[Speed]) -> list[dict[str, Any]]:
    """Errors and orders of each stack with a time beside the operators."""
    found = []
    for (stack,), group in grouped(speeds, _stack).items():
        rest = with_rest([speed for speed in group if speed.run.counts])
        if rest is None:
            continue
        errors = figures_of([speed.error for speed in rest.speeds])
        found.append(
            {
                "stack": stack,
                "least_s": round(rest.least_s, 4),
                "most_s": round(rest.most_s, 4),
                **errors.document(),
                "orders": orders(rest.speeds),
            }
        )
    return found


def document(speeds: Sequence[Speed], left_out: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the table shows."""
    return {
        "rows": [
            {
                "id": speed.run.id,
                "origin": speed.run.case.origin,
                "stack": speed.run.case.stack,
                "method": speed.run.case.config.method,
                "slower": speed.slower,
                "counts": speed.run.counts,
                "predicted_tokens_per_s": round(speed.predicted, 1),
                "measured_tokens_per_s": speed.run.tokens_per_s,
                "error": round(speed.error, 4),
                "adaptations": list(speed.run.adaptations),
            }
            for speed in speeds
        ],
        "stacks": [
            {"stack": stack, "method": method, **group.document()}
            for (stack, method), group in figures(speeds, _stack_and_method).items()
        ],
        "kinds": evidence(speeds),
        "orders": orders(speeds),
        "with_rest": rests(speeds),
        "left_out": dict(left_out),
    }


def print_report(speeds: Sequence[Speed], left_out: Mapping[str, str]) -> None:
    """The table of rows, then figures, orders, adaptations and what was left out."""
    print(f"{'row':40} {'method':7} {'slower':7} {'predicted':>10} {'measured':>10} {'error':>9}")
    for speed in speeds:
        print(
            f"{speed.run.id:40} {speed.run.case.config.method:7} {speed.slower:7} "
            f"{speed.predicted:>10.0f} {speed.run.tokens_per_s:>10.0f} {percent(speed.error):>9}"
            f"{'' if speed.run.counts else '  low trust'}"
        )
    for title, key in (
        ("stack", _stack),
        ("stack, method", _stack_and_method),
        ("kind", _kind),
        ("all", lambda _: ("",)),
    ):
        print_figures(title, figures(speeds, key))
    _print_orders(orders(speeds))
    for rest in rests(speeds):
        print(
            f"\n{rest['stack']} with {rest['least_s']:.3f}-{rest['most_s']:.3f} s a micro-step "
            f"beside the operators: {rest['count']} rows, signed "
            f"{percent(rest['signed_median'])}, absolute "
            f"{percent(rest['absolute_median'], sign=False)}, 95th "
            f"{percent(rest['p95'], sign=False)}"
        )
        _print_orders(rest["orders"])
    known = ADAPTATIONS | KERNELS
    for name in sorted({name for speed in speeds for name in speed.run.adaptations}):
        print(f"adapted, {name}: it {known[name].did} ({known[name].source})")
    for name, reason in left_out.items():
        print(f"left out, {name}: {reason}")


def _print_orders(found: Iterable[dict[str, Any]]) -> None:
    verdicts = {None: "  not judged", True: "", False: "  missed"}
    print(f"\n{'order':44} {'rows':>5} {'tau-b':>7} {f'apart > {APART:.0%}':>11} {'errors':>7}")
    for order in found:
        print(
            f"{order['name']:44} {order['rows']:>5} {order['all_pairs']:>7.3f} "
            f"{order['pairs_apart']:>11.3f} {order['errors_apart']:>7.1%}{verdicts[order['met']]}"
        )


def _stack(speed: Speed) -> tuple[str, ...]:
    return (speed.run.case.stack,)


def _stack_and_method(speed: Speed) -> tuple[str, ...]:
    return speed.run.case.stack, speed.run.case.config.method


def _survey(speed: Speed) -> tuple[str, ...]:
    return (speed.run.survey,)


def _rungs(speed: Speed) -> tuple[str, ...]:
    case = speed.run.case
    return speed.run.survey, case.model.id, str(case.config.sequence_length)


def _kind(speed: Speed) -> tuple[str, ...]:
    gpu = find_gpu(speed.run.case.gpu)
    capability = (gpu.compute_capability if gpu is not None else None) or "unknown"
    return speed.run.case.origin, capability, speed.slower


def _tau(found: Agreement) -> float:
    return round(found.tau_b or 0.0, 4)


def _say_progress(speed: Speed) -> None:
    print(f"{speed.run.id} done", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
