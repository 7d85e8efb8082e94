"""What the tool itself costs: seconds of a try beyond its device context, model build and steps.

    python scripts/benchmarks/rung_overhead.py --model HuggingFaceTB/SmolLM2-135M --device cpu

Jobs go through the real host and its forked children. The host is this file (`--host`), which
notes when the parts of a job begin and how long each spends in imports; nothing else differs.
Columns, in seconds from the parent's request to the child's end:
  context   of the device (before the load phase begins)
  build     model, adapter, optimizer, batches, without imports
  steps     watched for memory, traced (CUDA), warm-up and timed
  imports   what the child had to import beyond what the host has
  tool      fork, reading the job, the measurement's record, the reply, the end: all the rest
Overhead is imports + tool; the goal is 1 s. Then `--help` against a bare interpreter, goal 0.2 s.
Exit code 0 within both goals, 3 outside.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oomdoctor.commands.jobs.host import WorkerHost
from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.machine.devices import Device, choose_device
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.system.models.hub import resolve
from oomdoctor.system.recipes.recipes import load_recipe, parse_rung

OVERHEAD_GOAL_S = 1.0
HELP_GOAL_S = 0.2
STAMPS = "stamps.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One try and its parts in seconds; `status` is that of the reply."""

    label: str
    status: str
    wall_s: float
    context_s: float
    build_s: float
    steps_s: float
    imports_s: float
    tool_s: float

    @property
    def overhead_s(self) -> float:
        return self.imports_s + self.tool_s


class Stamps:
    """When each part of a job began, and the seconds of imports within it.

    `time.monotonic` is one clock for all processes of a machine (Linux), so the parent can use it.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[str, float]] = [("start", time.monotonic())]
        self.imports: dict[str, float] = {}

    def begin(self, part: str) -> None:
        """From now on it is `part`."""
        self.parts.append((part, time.monotonic()))

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with the part `name` while it runs and "record" after it."""

        @functools.wraps(function)
        def stamped(*args: Any, **kwargs: Any) -> Any:
            self.begin(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.begin("record")

        return stamped

    @contextlib.contextmanager
    def counting_imports(self) -> Iterator[None]:
        """Count the time of every outermost import, statement or not.

        CPython looks this function up on each import of a module that is not loaded yet.
        """
        machinery: Any = importlib._bootstrap  # type: ignore[attr-defined]
        original, depth = machinery._find_and_load, 0

        def timed(*args: Any) -> Any:
            nonlocal depth
            begin, depth = time.monotonic(), depth + 1
            try:
                return original(*args)
            finally:
                depth -= 1
                if depth == 0:
                    part = self.parts[-1][0]
                    spent = time.monotonic() - begin
                    self.imports[part] = self.imports.get(part, 0.0) + spent

        machinery._find_and_load = timed
        try:
            yield
        finally:
            machinery._find_and_load = original


def run_job(job_path: Path, reply_path: Path) -> None:
    """What `oomdoctor.worker.__main__.run_job` does, with stamps."""
    from oomdoctor.worker.protocol import PhaseFile, phase_file

    stamps = Stamps()

    class StampedPhases(PhaseFile):
        """The memory steps begin with the first forward; loading and the context before it."""

        def enter(self, phase: str) -> None:
            seen = {part for part, _ in stamps.parts}
            if phase == "init" and "context" not in seen:
                stamps.begin("context")
            elif phase == "load":
                stamps.begin("build")
            elif phase == "forward" and "memory" not in seen:
                stamps.begin("memory")
            super().enter(phase)

    with stamps.counting_imports():
        from oomdoctor.worker.answer import answer_here as answer
        from oomdoctor.worker.measuring import measure

        measure.time_steps = stamps.around("timing", measure.time_steps)
        job = loads(ProbeJob, job_path.read_text())
        reply = answer(job, StampedPhases(phase_file(reply_path)))
        unfinished = reply_path.with_suffix(".tmp")
        unfinished.write_text(dumps(reply))
        unfinished.replace(reply_path)
    stamps.begin("end")
    told = {"parts": stamps.parts, "imports": stamps.imports}
    reply_path.with_name(STAMPS).write_text(json.dumps(told))


def main() -> int:
    """Measure every rung, then `--help`; print and judge."""
    if sys.argv[1:] == ["--host"]:
        from oomdoctor.worker.host import serve

        return serve(run_job)
    options = parse_options()
    chosen = choose_device(options.device, list_gpus())
    spec = resolve(ModelRef(name=options.model))
    sizes = {
        "sequence_length": options.seq_len,
        "effective_batch_size": options.effective_batch,
        "micro_batch_size": options.micro_batch,
    }
    rungs = [*load_recipe(options.recipe, **sizes).rungs]  # type: ignore[arg-type]
    rungs += [parse_rung(text, **sizes) for text in options.rung]  # type: ignore[arg-type]
    rows = measure_rungs(rungs, spec, chosen, options)
    bare_s = median_wall([sys.executable, "-c", "pass"], options.help_runs)
    help_s = median_wall([sys.executable, "-m", "oomdoctor", "--help"], options.help_runs)
    document = {
        "benchmark": "rung_overhead",
        "model": spec.id,
        "device": chosen.gpu.name if chosen.gpu else "cpu",
        "rows": [asdict(row) | {"overhead_s": row.overhead_s} for row in rows],
        "overhead_goal_s": OVERHEAD_GOAL_S,
        "worst_overhead_s": max((row.overhead_s for row in rows), default=None),
        "help_s": help_s,
        "bare_python_s": bare_s,
        "help_ratio": help_s / bare_s,
        "help_goal_s": HELP_GOAL_S,
    }
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        print_table(document, rows)
    within = all(row.overhead_s <= OVERHEAD_GOAL_S for row in rows) and help_s <= HELP_GOAL_S
    return 0 if within else 3


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M", help="id or folder")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N, cpu, a GPU's UUID")
    parser.add_argument("--recipe", default="quick", help="name, file, or none with --rung")
    parser.add_argument("--rung", action="append", default=[], help="key=value,...; repeatable")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--effective-batch", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--timing-limit", type=float, default=10.0, help="seconds of timed steps")
    parser.add_argument("--help-runs", type=int, default=9, help="of --help; the median counts")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure_rungs(
    rungs: list[Rung], spec: ModelSpec, chosen: Device, options: argparse.Namespace
) -> list[Row]:
    """One job a rung, through one host."""
    environment = worker_environment(chosen.gpu.uuid if chosen.gpu else None)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        python = folder / "python"  # what the host is started with, in place of the interpreter
        python.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" --host\n'
        )
        python.chmod(0o755)
        with WorkerHost(str(python), environment, folder) as host:
            for number, rung in enumerate(rungs):
                place = folder / f"job-{number}"
                place.mkdir()
                job = ProbeJob(
                    mode="measure",
                    label=rung.label,
                    model=spec,
                    config=rung.config,
                    device_type=chosen.type,
                    timing_limit_s=options.timing_limit,
                )
                (place / "job.json").write_text(dumps(job))
                if number == 0:  # the first request also waits for the host's own start
                    host._ready(lambda: False)
                rows.append(measure_one(host, rung.label, place))
                print(f"{rung.label}: {rows[-1].overhead_s:.2f} s", file=sys.stderr, flush=True)
    return rows


def measure_one(host: WorkerHost, label: str, place: Path) -> Row:
    """The parts of one job."""
    begin = time.monotonic()
    host.run(
        place / "job.json",
        place / "reply.json",
        place / "log.txt",
        deadline_s=3600.0,
        on_poll=lambda: None,
        stop=lambda: False,
    )
    wall = time.monotonic() - begin
    if not (place / STAMPS).exists():
        sys.exit(f"{label}: the child died:\n" + (place / "log.txt").read_text(errors="replace"))
    told = json.loads((place / STAMPS).read_text())
    reply = loads(Reply, (place / "reply.json").read_text())
    spans: dict[str, float] = {}
    for (part, start), (_, end) in zip(told["parts"], told["parts"][1:], strict=False):
        spans[part] = spans.get(part, 0.0) + end - start
    imports = told["imports"]

    def net(*parts: str) -> float:
        return sum(spans.get(part, 0.0) - imports.get(part, 0.0) for part in parts)

    context, build, steps = net("context"), net("build"), net("memory", "timing")
    imported = sum(imports.values())
    tool = wall - context - build - steps - imported
    return Row(label, reply.status, wall, context, build, steps, imported, tool)


def median_wall(command: list[str], runs: int) -> float:
    """Median wall seconds of a command, after one run that warms the file cache."""
    samples = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, env=os.environ, check=True)
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples[1:])


def print_table(document: dict[str, Any], rows: list[Row]) -> None:
    """One line a rung, then the two verdicts."""
    print(f"{document['model']} on {document['device']}; seconds")
    names = ("wall", "context", "build", "steps", "imports", "tool", "overhead")
    print(f"{'rung':36} {'status':12} " + " ".join(f"{name:>8}" for name in names))
    for row in rows:
        parts = (row.wall_s, row.context_s, row.build_s, row.steps_s, row.imports_s, row.tool_s)
        cells = " ".join(f"{part:8.2f}" for part in (*parts, row.overhead_s))
        print(f"{row.label:36} {row.status:12} {cells}")
    if document["worst_overhead_s"] is not None:
        told = "within" if document["worst_overhead_s"] <= OVERHEAD_GOAL_S else "outside"
        print(
            f"worst overhead {document['worst_overhead_s']:.2f} s, goal {OVERHEAD_GOAL_S:g} s: "
            f"{told}"
        )
    told = "within" if document["help_s"] <= HELP_GOAL_S else "outside"
    print(
        f"--help {document['help_s']:.3f} s, bare python {document['bare_python_s']:.3f} s, ratio "
        f"{document['help_ratio']:.1f}; goal {HELP_GOAL_S:g} s: {told}"
    )


if __name__ == "__main__":
    sys.exit(main())
