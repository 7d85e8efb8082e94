"""The measurements of our own GPU runs in tests/data/measured/ as cases.

Each fitting rung is a case with what the caching allocator reported. A rung that ran out of memory
is a case without readings and with the bytes it was allowed: predicted to fit there, it is a false
"fits". The format of the files is told in tests/data/measured/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cases.case import Case, Reading
from oomdoctor.records.codec import from_json, to_json
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.system.models.hub import resolve

FOLDER = Path(__file__).parents[3] / "tests" / "data" / "measured"


def measured_cases(folder: Path = FOLDER) -> Iterator[Case]:
    """Every measured rung of every fixture under the folder, in the order of their names."""
    for path in sorted(folder.rglob("*.json")):
        report = json.loads(path.read_text())["report"]
        spec = resolve(ModelRef(report["model"]["id"], source="catalogue"))
        for result in report["results"]:
            case = _case(path, report, result, spec)
            if case is not None:
                yield case


def _case(
    path: Path, report: dict[str, Any], result: dict[str, Any], spec: ModelSpec
) -> Case | None:
    size = result["micro_batch_size"] or 1
    fits = result["outcome"] == "fits" and result["evidence"] == "measured"
    if not fits and result["outcome"] != "oom":
        return None
    readings = (
        Reading("allocated", result["peak_allocated_bytes"]),
        Reading("reserved", result["peak_reserved_bytes"]),
    )
    return Case(
        id=f"{path.parent.name}/{path.stem} {result['label']}",
        origin="measured",
        stack=path.parent.name,
        model=spec,
        config=_config(result["config"]).with_micro_batch(size),
        gpu=report["machine"]["gpu_name"],
        readings=readings if fits else (),
        ran_out_at_bytes=None if fits else report["budget"]["usable_bytes"],
    )


def _config(recorded: dict[str, Any]) -> TrainConfig:
    """A fixture may be older than a key; its run was what the key's default says."""
    return from_json(TrainConfig, to_json(TrainConfig()) | recorded)
