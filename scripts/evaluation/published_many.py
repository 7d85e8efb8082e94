"""Predictions of trainings on several GPUs beside what others measured and published.

    python scripts/evaluation/published_many.py --python CUDA/bin/python --venv .venv-published
    python scripts/evaluation/published_many.py --python CUDA/bin/python --only litgpt

Each row of tests/data/published_memory_multi.json becomes a rung. One rank runs the engine of this
rung on the row's emulated card, as `oomdoctor plan --gpus` does. Rows of fms-acceleration run with
the library versions of the row, if --venv is given: they are installed there, about 1 GB. The
others run with those of `--python`, changed where the row's code did something else. Each row takes
20 to 200 seconds. One that needs more host memory than --host-limit is named, and so is what no
rung can say.

--write FILE keeps the figures, for the documentation and the tests. Exit code 0 if the median is at
most 3 % and the 95th percentile at most 10 %, else 3.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulated.environment import make
from figures.errors import figures_of
from published.code import NotExpressibleError
from published.many.code import check_many
from published.many.config import many_config
from published.many.running import Interpreters, predict

FILE = Path(__file__).parents[2] / "tests" / "data" / "published_memory_multi.json"
MEDIAN, P95 = 0.03, 0.10


def main() -> int:
    options = _options()
    older = make(options.venv) if options.venv else None
    interpreters = Interpreters(options.python, older)
    every = json.loads(FILE.read_text(encoding="utf-8"))
    for row in every:
        if any(name in row["id"] for name in options.only):
            found = _found(row, interpreters, round(options.host_limit * 1e9))
            print(_line(found), flush=True)
            if options.write:
                _keep(found, every, options.write)
    known = json.loads(options.write.read_text()) if options.write else []
    return _report(known)


def _found(row: dict[str, Any], interpreters: Interpreters, host_bytes: int) -> dict[str, Any]:
    """A row with its prediction, or with the reason why it has none."""
    found = {key: row[key] for key in ("id", "gpu", "world_size", "metric", "measured_bytes")}
    try:
        check_many(row)
        many_config(row)
    except NotExpressibleError as error:
        return found | {"left_out": str(error)}
    except KeyError as error:
        return found | {"left_out": f"the row does not tell {error}"}
    prediction = predict(row, interpreters, host_bytes)
    if isinstance(prediction, str):
        limited = "host memory" in prediction
        return found | {"left_out" if limited else "failed": prediction}
    return found | asdict(prediction)


def _line(found: dict[str, Any]) -> str:
    if "predicted_bytes" not in found:
        return f"{found['id']:46} {found.get('left_out') or found.get('failed')}"
    error = found["predicted_bytes"] / found["measured_bytes"] - 1
    return (
        f"{found['id']:46} {found['metric']:10} {found['predicted_bytes'] / 1e9:8.3f} GB "
        f"{found['measured_bytes'] / 1e9:8.3f} GB {error:+7.2%}  torch {found['torch']}"
    )


def _keep(found: dict[str, Any], rows: list[dict[str, Any]], file: Path) -> None:
    """Write a row beside those that the file has, in the rows' order. A failed one is not kept."""
    known = {r["id"]: r for r in json.loads(file.read_text())} if file.exists() else {}
    if "failed" not in found:
        known[found["id"]] = found
    ordered = [known[row["id"]] for row in rows if row["id"] in known]
    file.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def _report(known: list[dict[str, Any]]) -> int:
    errors = [
        row["predicted_bytes"] / row["measured_bytes"] - 1
        for row in known
        if "predicted_bytes" in row
    ]
    if not errors:
        return 0
    figures = figures_of(errors)
    print(
        f"{len(errors)} rows: median {figures.absolute_median:.2%}, 95th percentile "
        f"{figures.p95:.2%}"
    )
    return 0 if figures.absolute_median <= MEDIAN and figures.p95 <= P95 else 3


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="a CUDA build of torch")
    parser.add_argument("--venv", type=Path, help="for the versions of fms-acceleration's rows")
    parser.add_argument("--only", nargs="+", default=[""], help="rows with one of these texts")
    parser.add_argument("--host-limit", type=float, default=16.0, help="GB of host memory")
    parser.add_argument("--write", type=Path, help="keep the figures in a file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
