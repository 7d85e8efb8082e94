"""Is what a plan says of a model type what torch does? every fourth type on the emulated GPU.

    python scripts/evaluation/families_emulated.py --python .venv-cuda/bin/python
    python scripts/evaluation/families_emulated.py --task causal-lm --only mixtral qwen3

Types and configs are those of `families.py`, with 512 tokens at most;
full fine-tuning and LoRA take turns. Each step runs on an emulated card with room for everything,
and is simulated in the same interpreter, whose torch is a CUDA build. Peaks and differences are
kept in `families/emulated/differences.json`, from which `families.py --page` takes its table.
About 20 seconds a type.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, get_args

from emulated.both import both
from families import asked_of, config_of, rung_of, types_of
from families_page import ANSWERS, EMULATED

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import Method
from oomdoctor.records.job.model import ModelRef, Task
from oomdoctor.system.models.hub import resolve

CARD = "H100 SXM"
_LENGTH, _EACH = 512, 4
_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class TypeRung:
    """A model type with a method; what `Both` compares."""

    card: str
    model: str
    task: Task
    architecture: str
    config: TrainConfig

    @property
    def name(self) -> str:
        return f"{self.task} {self.model} {self.config.method}"


def chosen(tasks: list[Task], only: list[str]) -> Iterator[tuple[TypeRung, dict[str, Any]]]:
    """Every fourth answered type of the tasks, or those that are named."""
    for task in tasks:
        answers = json.loads((ANSWERS / f"{task}.json").read_text())["types"]
        answered = [
            kind
            for kind, row in answers.items()
            if all(row[method]["outcome"] == "answered" for method in get_args(Method)[:2])
        ]
        for place, kind in enumerate(only or answered[::_EACH]):
            if kind not in answered:
                continue
            name = types_of(task)[kind]
            method: Method = "full" if place % 2 == 0 else "lora"
            config = config_of(kind, name, task)
            rung = rung_of(kind, config, method, length=_LENGTH)
            yield TypeRung(CARD, kind, task, name, rung), config


def main() -> None:
    """Compare, print and keep each type as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", type=Path, default=Path(".venv-cuda/bin/python"))
    parser.add_argument("--task", choices=get_args(Task), action="append")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="where the emulator's libraries are kept")
    options = parser.parse_args()
    asked = list(chosen(options.task or list(get_args(Task)), options.only))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)

        def work(number: int) -> None:
            own = folder / f"worker-{number}"
            own.mkdir()
            cache = options.cache or folder / "cache"
            with both(options.python.absolute(), own, cache) as workers:
                for rung, config in asked[number :: options.processes]:
                    place = own / rung.model
                    place.mkdir(exist_ok=True)
                    (place / "config.json").write_text(json.dumps(config))
                    spec = resolve(ModelRef(str(place), task=asked_of(rung.task)))
                    compared = workers.compare(rung, spec=spec)
                    _keep(rung, compared.emulated, compared.simulated, compared.reason)

        with ThreadPoolExecutor(options.processes) as threads:
            list(threads.map(work, range(options.processes)))


def _keep(rung: TypeRung, emulated: Any, simulated: Any, reason: str | None) -> None:
    """Print a row, and write it."""
    row: dict[str, Any] = {"task": rung.task, "type": rung.model, "method": rung.config.method}
    if emulated is None or simulated is None:
        row |= {"reason": " ".join((reason or "").split())[:300]}
    else:
        row |= {"emulated": [emulated.allocated, emulated.reserved]}
        row |= {"simulated": [simulated.allocated, simulated.reserved]}
        share = simulated.allocated / emulated.allocated - 1
        row |= {"difference": round(share, 6)}
    print(json.dumps(row))
    sys.stdout.flush()
    with _LOCK:
        rows = json.loads(EMULATED.read_text()) if EMULATED.exists() else []
        others = [each for each in rows if (each["task"], each["type"]) != (rung.task, rung.model)]
        ordered = sorted([*others, row], key=lambda each: (each["task"], each["type"]))
        lines = ",\n".join(map(json.dumps, ordered))
        EMULATED.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
