"""The published measurements of tests/data/published_memory.json as cases.

Each row is expressed as it ran: what a rung can say by a rung (`published_config`), what old
libraries did differently by adaptations (`published.code`), and a row that neither gives is left
out with the reason. A row has the settings of the run, `measured_bytes` with its `metric`, the
`source` it was read from, and in `trust_reason` and `note` what was stated there and what had to be
assumed. A row with `fits` false ran out of memory on its card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from cases.case import Case, LeftOut, Metric, Reading
from cases.row_lengths import lengths_of

from oomdoctor.analysis.memory.overhead import context_bytes, device_total_bytes
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.model import ModelSpec, Task
from oomdoctor.system.catalogue import find_gpu, gpus
from published.code import NotExpressibleError, Row, adaptations, check_code
from published.config import train_config

FILE = Path(__file__).parents[3] / "tests" / "data" / "published_memory.json"
MIB = 1 << 20
_TASKS: dict[str, Task] = {task.replace("-", "_"): task for task in get_args(Task)}
_METRICS: dict[str, Metric] = {
    "allocated": "allocated",
    "reserved": "reserved",
    "nvidia_smi": "device",
}


def published_cases(path: Path = FILE) -> Iterator[Case | LeftOut]:
    """Every row of the file, in its order.

    Raises:
        SystemExit: the file cannot be read or is no list of rows.
    """
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {path}: {error}") from error
    if not isinstance(rows, list):
        raise SystemExit(f"error: {path} is no list of rows")
    for number, row in enumerate(rows):
        name = str(row.get("id")) if isinstance(row, dict) else f"row {number}"
        try:
            yield _case(name, row)
        except NotExpressibleError as error:
            yield LeftOut(name, str(error))
        except KeyError as error:
            yield LeftOut(name, f"the row does not tell {error}")
        except (TypeError, ValueError, AttributeError) as error:
            yield LeftOut(name, f"the row is not of the usual form: {error}")


def _case(name: str, row: Row) -> Case:
    check_code(row)
    gpu = find_card(str(row["gpu"]))
    fits = row.get("fits") is not False
    return Case(
        id=name,
        origin="published",
        stack=str(row["stack"]),
        model=model_of(row),
        config=train_config(row),
        gpu=gpu.name if gpu else str(row["gpu"]),
        readings=(_reading(row, gpu),) if fits else (),
        adaptations=tuple(adaptations(row)),
        lengths=lengths_of(row),
        ran_out_at_bytes=None if fits else _capacity(row),
    )


def find_card(name: str) -> GpuFacts | None:
    """The card of that name, or the first of those that it may mean."""
    return next(iter(_cards(name)), None)


def _cards(name: str) -> list[GpuFacts]:
    """The card of that name, or all that have its words: "A10G 24GB" is an A10G."""
    exact, words = find_gpu(name), _words(name)
    if exact is not None or not words:
        return [exact] if exact else []
    return [
        gpu
        for gpu in gpus()
        if any(
            words <= _words(known) | {f"{gpu.memory_bytes >> 30}GB"}
            for known in (gpu.name, *gpu.aliases)
        )
    ]


def _words(name: str) -> set[str]:
    return set(re.split(r"[\s-]+", name.upper())) - {"", "NVIDIA", "GEFORCE", "TESLA"}


def _capacity(row: Row) -> int:
    """Bytes of the card that a run ran out on; the least of cards with that name and size."""
    alike = _cards(str(row["gpu"]))
    if len({gpu.memory_bytes for gpu in alike}) != 1:
        raise NotExpressibleError(f"it ran out on {row['gpu']}, whose memory is not known")
    return min(device_total_bytes(gpu)[0] for gpu in alike)


def _reading(row: Row, gpu: GpuFacts | None) -> Reading:
    metric, size = _METRICS.get(row["metric"]), row["measured_bytes"]
    if metric is None:
        raise NotExpressibleError(f"the metric {row['metric']!r}, which is not predicted")
    if not size > 0:
        raise NotExpressibleError(f"measured_bytes {size}")
    if metric == "device":
        return Reading(metric, round(size), _context(row, gpu), round(size))
    return Reading(metric, round(size), device_bytes=_device_bytes(row))


def _device_bytes(row: Row) -> int | None:
    """nvidia-smi's reading beside the allocator's, if the source has one."""
    for other in row.get("measured_also") or ():
        if other["metric"] == "nvidia_smi" and other["unit"] == "GiB":
            return int(other["peak_gb"] * (1 << 30))
    return None


def _context(row: Row, gpu: GpuFacts | None) -> int:
    """Bytes of the CUDA context: what the row's source read before the model, else our estimate."""
    words = f"{row.get('note')} {row.get('trust_reason')}"
    told = re.search(r"(\d+) (?:MB|MiB)(?: CUDA)? context", words)
    if told:
        return int(told[1]) * MIB  # nvidia-smi says MB or MiB and means MiB
    if gpu is None:
        raise NotExpressibleError(f"the context on {row['gpu']}, which is not in the catalogue")
    return context_bytes(gpu).likely


def model_of(row: Row) -> ModelSpec:
    if row["task"] not in _TASKS:
        raise NotExpressibleError(f"the task {row['task']!r}, which no rung has")
    task, config = _TASKS[row["task"]], dict(row["config"])
    architecture = str((config.get("architectures") or [config["model_type"]])[0])
    if task == "sequence-classification":  # the file names what the checkpoint was trained as
        architecture = f"{architecture.partition('For')[0]}ForSequenceClassification"
    config["architectures"] = [architecture]
    return ModelSpec(
        str(row["model_id"]), "catalogue", architecture, config["model_type"], task, config
    )
