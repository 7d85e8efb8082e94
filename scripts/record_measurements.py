"""Record what this GPU measures: the ladder of well-known models as fixtures of the tests.

    python scripts/record_measurements.py
    python scripts/record_measurements.py --model Qwen/Qwen2.5-1.5B --seq-len 1024 --seq-len 4096

Runs `oomdoctor probe` for every combination of the options and writes each report to
tests/data/measured/<gpu>/<model>-<shape>.json (format: README.md there), then prints the wall time
of every ladder. Weights are synthetic, configurations are the catalogue's: no network is needed.
Exit code 5 without a GPU, 1 when a ladder came to no report, else 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError
from oomdoctor.system.machine.devices import choose_device
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.units import format_seconds, parse_size

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "measured"
MODELS = ("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2.5-1.5B", "meta-llama/Llama-3.1-8B")
WHOLE_CARD = "card"
USABLE_EXITS = (0, 3, 6)  # something fits; nothing fits; not everything could be tried


@dataclass(frozen=True, slots=True)
class Shape:
    """One survey of a model: None searches the micro-batch, None is the whole card."""

    sequence_length: int
    effective_batch_size: int
    micro_batch_size: int | None
    vram: str | None

    def slug(self) -> str:
        """`s2048-e16-mb4-24gib`, the tail of the file name."""
        parts = [f"s{self.sequence_length}", f"e{self.effective_batch_size}"]
        if self.micro_batch_size is not None:
            parts.append(f"mb{self.micro_batch_size}")
        parts.append(slug(self.vram) if self.vram else WHOLE_CARD)
        return "-".join(parts)


def main() -> int:
    """Run every survey; write the fixtures; print the wall times."""
    options = parse_options()
    try:
        device = choose_device(options.device, list_gpus())
    except OomDoctorError as error:
        print(f"error: nothing recorded: {error.message}", file=sys.stderr)
        print("hint:  run it where `oomdoctor env` shows a CUDA GPU", file=sys.stderr)
        return int(error.exit_code)
    assert device.gpu is not None  # `cuda` was asked for, so `choose_device` raised without one
    lines, failed = [], False
    for model, shape in itertools.product(options.model or MODELS, shapes(options)):
        name = f"{slug(model.rpartition('/')[2])}-{shape.slug()}"
        print(f"== {name}", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        exit_code, report = probe(model, shape, device.gpu.uuid, options)
        wall = time.perf_counter() - begin
        if exit_code not in USABLE_EXITS or not report["results"]:
            failed = True
            lines.append(f"{name:44} exit code {exit_code}: {report['errors']}")
            continue
        path = options.output / slug(device.gpu.name) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(fixture(report, wall), indent=2, ensure_ascii=False) + "\n")
        fit = sum(result["outcome"] == "fits" for result in report["results"])
        lines.append(
            f"{name:44} {format_seconds(wall):>12}  {fit} of {len(report['results'])} rungs fit, "
            f"{sum(len(result['tries']) for result in report['results'])} tries"
        )
    print("\n".join(lines))
    return 1 if failed else 0


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", action="append", help="catalogue id; repeatable")
    parser.add_argument("--recipe", default="default", help="name or file")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or a GPU's UUID")
    parser.add_argument(
        "--vram",
        action="append",
        help=f"such as 24GiB, or {WHOLE_CARD} for no cap; repeatable (default: both of these)",
    )
    parser.add_argument("--seq-len", type=int, action="append", help="repeatable (default: 2048)")
    parser.add_argument("--effective-batch", type=int, default=16)
    parser.add_argument(
        "--micro-batch", type=int, action="append", help="fixed, repeatable (default: search)"
    )
    parser.add_argument("--time-limit", help="of each survey, such as 8m")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.device == "cpu":
        parser.error("only measurements of a GPU are recorded")
    for size in options.vram or ():
        if size != WHOLE_CARD:
            try:
                parse_size(size)
            except ValueError as error:
                parser.error(f"--vram: {error}")
    return options


def shapes(options: argparse.Namespace) -> list[Shape]:
    """Every combination of the options, in their order."""
    return [
        Shape(length, options.effective_batch, micro, None if cap == WHOLE_CARD else cap)
        for length, micro, cap in itertools.product(
            options.seq_len or [2048],
            options.micro_batch or [None],
            options.vram or [WHOLE_CARD, "24GiB"],
        )
    ]


def probe(
    model: str, shape: Shape, uuid: str, options: argparse.Namespace
) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `oomdoctor probe`; progress goes to stderr."""
    command = [sys.executable, "-m", "oomdoctor", "probe", model, "--json", "--device", uuid]
    command += ["--source", "catalogue", "--recipe", options.recipe]
    command += ["--seq-len", str(shape.sequence_length)]
    command += ["--effective-batch", str(shape.effective_batch_size)]
    if shape.micro_batch_size is not None:
        command += ["--micro-batch", str(shape.micro_batch_size)]
    if shape.vram is not None:
        command += ["--vram", shape.vram]
    if options.time_limit is not None:
        command += ["--time-limit", options.time_limit]
    with tempfile.TemporaryFile() as answer:
        ended = subprocess.run(command, stdout=answer, check=False)
        answer.seek(0)
        text = answer.read().decode()
    try:
        return ended.returncode, json.loads(text)
    except ValueError:
        return ended.returncode, {"results": [], "errors": f"no document: {text[:200]!r}"}


def fixture(report: dict[str, Any], wall_s: float) -> dict[str, Any]:
    """The report without what belongs to this machine alone, and what made the figures."""
    machine, request = report["machine"], report["request"]
    return {
        "format": "oomdoctor-measured/1",
        "driver_version": machine["driver_version"],
        "versions": machine["versions"],
        "wall_s": round(wall_s, 1),
        "report": report
        | {
            "run_dir": None,
            "request": request | {"python": "python", "device": "cuda"},
            "machine": machine
            | {"hostname": "", "gpu_uuid": None, "slurm_job_id": None, "other_processes": []},
            "results": [without_log(result) for result in report["results"]],
            "next_commands": [],
        },
    }


def without_log(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose failure does not quote the worker's log, which is full of paths."""
    if result["failure"] is None:
        return result
    return result | {"failure": result["failure"] | {"log_tail": ""}}


def slug(text: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
