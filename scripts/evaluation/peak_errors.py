"""How far may a predicted peak be off? The errors by kind, from two stored comparisons.

    python scripts/evaluation/peak_errors.py
    python scripts/evaluation/peak_errors.py --write oomdoctor/data/peak_errors.json

One is `simulated_emulated.py`: predicted peaks beside those of the same rungs on the emulated GPU.
The other is `emulated_real.py`: peaks on the emulated GPU beside runs of real ones that others
published, and further runs of the same benchmark. `plan` takes its uncertainty from what this
writes. Nothing is run here: renew the files of data first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from emulated.readings import error as error_of_reading
from emulated.rungs import EmulatedRung
from figures.errors import Figures, figures_of, percent

from oomdoctor.system.catalogue import find_gpu

STORED = Path(__file__).parents[2] / "tests" / "data" / "emulated"
Kind = tuple[str | None, str | None, str | None]  # method, compute capability, torch


def main() -> int:
    """Print, and write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="write the errors by kind here")
    options = parser.parse_args()
    found = records(
        stored("differences.json"), [*stored("published.json"), *stored("benchmark.json")]
    )
    for record in found:
        kind = (record["method"], record["compute_capability"], record["torch"])
        named = " ".join(word or "every" for word in kind)
        print(
            f"{record['reference']:10} {record['metric']:10} {named:24} {record['count']:>4} "
            f"{percent(record['absolute_median'], sign=False):>9} "
            f"{percent(record['p95'], sign=False):>9}"
        )
    if options.write is not None:
        options.write.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def records(
    differences: Sequence[dict[str, Any]], published: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """As `oomdoctor.system.catalogue` reads them; each rung counts for every kind that it is of."""
    found = []
    for metric in ("allocated", "reserved"):
        groups: dict[Kind, list[float]] = {}
        for row in differences:
            error = row["simulated"][metric] / row["emulated"][metric] - 1
            for kind in _kinds(row):
                groups.setdefault(kind, []).append(error)
        for kind, errors in sorted(groups.items(), key=lambda each: str(each[0])):
            found.append(_record("emulated", metric, kind, figures_of(errors)))
    figures = figures_of([error_of_reading(row) for row in published])
    found.append(_record("published", "allocated", (None, None, None), figures))
    return found


def _kinds(row: dict[str, Any]) -> Iterator[Kind]:
    """From the most special to the most general."""
    method = EmulatedRung(row["card"], row["model"], row["settings"]).config.method
    gpu = find_gpu(row["card"])
    assert gpu is not None, row["card"]
    release = ".".join(row["torch"].split(".")[:2])
    yield method, gpu.compute_capability, release
    yield method, None, release
    yield None, None, release
    yield method, None, None


def _record(reference: str, metric: str, kind: Kind, figures: Figures) -> dict[str, Any]:
    method, capability, torch = kind
    return {
        "reference": reference,
        "metric": metric,
        "method": method,
        "compute_capability": capability,
        "torch": torch,
        **{name: round(value, 6) for name, value in figures.exact().items()},
    }


def stored(name: str) -> list[dict[str, Any]]:
    """The rows of a stored comparison."""
    rows: list[dict[str, Any]] = json.loads((STORED / name).read_text(encoding="utf-8"))
    return rows


if __name__ == "__main__":
    sys.exit(main())
