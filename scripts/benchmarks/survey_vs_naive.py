"""What a survey costs beside trying by hand: the same ladder, both ways, in one run.

    python scripts/benchmarks/survey_vs_naive.py --model Qwen/Qwen2.5-1.5B --vram 24GiB

(a) `oomdoctor probe`. (b) The naive way: for each rung a fresh python process per try
(`evaluation/trainer_run.py`), `from_pretrained` of a saved checkpoint, `--steps` steps of a
Trainer, and the micro-batch doubled until a try fails or the effective batch is reached. Saving the
checkpoint is not counted: people who train by hand have one.

`--vram` caps the allocator of both on CUDA. On the CPU only oomdoctor has a budget, so the naive
way never runs out there and ends at the effective batch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oomdoctor.records.job.model import ModelRef
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.devices import Device, choose_device
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.system.models.hub import resolve
from oomdoctor.units import format_seconds, parse_size

TRAINER = Path(__file__).parents[1] / "evaluation" / "trainer_run.py"


@dataclass(frozen=True, slots=True)
class Way:
    """What one way needed for one rung, and the largest micro-batch that it found to run."""

    seconds: float
    tries: int
    micro_batch_size: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One rung both ways; `outcome` is oomdoctor's."""

    label: str
    outcome: str
    ours: Way
    naive: Way


def main() -> int:
    """Run both, print the ratio."""
    options = parse_options()
    chosen = choose_device(options.device, list_gpus())
    environment = worker_environment(chosen.gpu.uuid if chosen.gpu else None)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        begin = time.perf_counter()
        report = probe(options, folder)
        ours_s = time.perf_counter() - begin
        say(f"oomdoctor probe: {format_seconds(ours_s)}")
        save_checkpoint(options, chosen, environment, folder)
        rows = []
        for result in report["results"]:
            naive = by_hand(result["config"], options, chosen, environment, folder)
            ours = Way(result["elapsed_s"], len(result["tries"]), result["max_micro_batch_size"])
            rows.append(Row(result["label"], result["outcome"], ours, naive))
            say(f"by hand: {result['label']}: {format_seconds(naive.seconds)}")
    document = {
        "benchmark": "survey_vs_naive",
        "model": report["model"]["id"],
        "device": report["machine"]["gpu_name"] or "cpu",
        "sequence_length": options.seq_len,
        "effective_batch_size": options.effective_batch,
        "vram_bytes": report["request"]["vram_bytes"],
        "naive_steps": options.steps,
        "survey_s": ours_s,
        "survey_worker_runs": 1 + sum(row.ours.tries for row in rows),  # one looks at the model
        "naive_s": sum(row.naive.seconds for row in rows),
        "naive_runs": sum(row.naive.tries for row in rows),
        "rows": [asdict(row) for row in rows],
    }
    document["ratio"] = document["naive_s"] / ours_s
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        print_table(document, rows)
    return 0


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M", help="id or folder")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N, cpu, a GPU's UUID")
    parser.add_argument("--recipe", default="default", help="name, file, or none with --rung")
    parser.add_argument("--rung", action="append", default=[], help="key=value,...; repeatable")
    parser.add_argument("--vram", help="such as 24GiB")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--effective-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="of each naive try")
    parser.add_argument("--scratch", help="folder for checkpoints (default: the system's)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: the first is warm-up")
    return options


def probe(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The report of `oomdoctor probe`; its progress goes to stderr."""
    command = [sys.executable, "-m", "oomdoctor", "probe", options.model, "--json"]
    command += ["--device", options.device, "--recipe", options.recipe, "--task", "causal-lm"]
    command += ["--seq-len", str(options.seq_len)]
    command += ["--effective-batch", str(options.effective_batch)]
    for rung in options.rung:
        command += ["--rung", rung]
    if options.vram:
        command += ["--vram", options.vram]
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
    report: dict[str, Any] = json.loads(ended.stdout)
    if not report["results"]:
        sys.exit("the survey has no results: " + json.dumps(report["errors"]))
    return report


def save_checkpoint(
    options: argparse.Namespace, chosen: Device, environment: dict[str, str], folder: Path
) -> None:
    """A checkpoint of random weights in `folder`."""
    spec = resolve(ModelRef(name=options.model, task="causal-lm"))
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text(json.dumps(dict(spec.config)))
    if not train({"steps": 0}, options, chosen, environment, folder):
        sys.exit((folder / "log.txt").read_text(errors="replace"))


def by_hand(
    config: dict[str, Any],
    options: argparse.Namespace,
    chosen: Device,
    environment: dict[str, str],
    folder: Path,
) -> Way:
    """Double the micro-batch until a try fails or the effective batch is reached."""
    begin = time.perf_counter()
    tries, largest, size = 0, None, 1
    while size <= config["effective_batch_size"]:
        tries += 1
        settings = {"config": config | {"micro_batch_size": size}, "steps": options.steps}
        if not train(settings, options, chosen, environment, folder):
            break
        largest, size = size, 2 * size
    return Way(time.perf_counter() - begin, tries, largest)


def train(
    settings: dict[str, Any],
    options: argparse.Namespace,
    chosen: Device,
    environment: dict[str, str],
    folder: Path,
) -> bool:
    """One fresh process; whether it ended well."""
    request = {
        "config": {},
        "checkpoint": str(folder / "checkpoint"),
        "device": chosen.type,
        "warmup_steps": 1,
        "profile_steps": 0,
        "cap_bytes": parse_size(options.vram) if options.vram else None,
        "seed": 0,
    } | settings
    (folder / "spec.json").write_text(json.dumps(request))
    command = [sys.executable, str(TRAINER), str(folder / "spec.json"), str(folder / "out.json")]
    with (folder / "log.txt").open("w") as log:
        ended = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    return ended.returncode == 0


def print_table(document: dict[str, Any], rows: list[Row]) -> None:
    """One line a rung, then both totals and the ratio."""
    print(
        f"{document['model']} on {document['device']}: sequence length "
        f"{document['sequence_length']}, effective batch {document['effective_batch_size']}, "
        f"{document['naive_steps']} steps a naive try"
    )
    print(f"{'rung':36} {'outcome':12} {'ours':>10} {'tries':>5} {'micro':>5}", end="")
    print(f" {'by hand':>12} {'tries':>5} {'micro':>5}")
    for row in rows:
        print(f"{row.label:36} {row.outcome:12} {cells(row.ours, 10)} {cells(row.naive, 12)}")
    print(
        f"survey {format_seconds(document['survey_s'])} with {document['survey_worker_runs']} "
        f"worker runs; by hand {format_seconds(document['naive_s'])} with "
        f"{document['naive_runs']} runs; by hand / survey = {document['ratio']:.2f}"
    )


def cells(way: Way, width: int) -> str:
    """Time, tries and the largest micro-batch."""
    size = "–" if way.micro_batch_size is None else way.micro_batch_size
    return f"{format_seconds(way.seconds):>{width}} {way.tries:>5} {size:>5}"


def say(text: str) -> None:
    """Progress, beside the answer."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
