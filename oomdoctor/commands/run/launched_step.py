"""Where the time of a step goes that ran on the emulated card, from the notes of its launches.

The kernels did not run: their times are those that `plan` estimates, for the same operators.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from oomdoctor.analysis.simulator.launched import LaunchedStep as Step
from oomdoctor.analysis.simulator.launched import in_tf32, last_step
from oomdoctor.analysis.simulator.step_parts import Engine, joined, step_time
from oomdoctor.analysis.simulator.step_slices import Slice, step_slices
from oomdoctor.analysis.simulator.timing import Work, estimated_timing
from oomdoctor.analysis.speed.communication import exposed_seconds
from oomdoctor.analysis.speed.convolutions import untimed_group
from oomdoctor.analysis.speed.links import links_of
from oomdoctor.commands.jobs.host import python_path
from oomdoctor.commands.plan.trace import trace_document
from oomdoctor.commands.run.rank_records import Process
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.errors import machine_error
from oomdoctor.records.codec import from_json
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.costs import Calibration, OpCost
from oomdoctor.records.job.launches import read_launches
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.step_time import StepTime
from oomdoctor.records.report.run import FasterStep, LaunchedProduct, LaunchedStep, UnknownKernel
from oomdoctor.system.catalogue import speed_errors
from oomdoctor.system.environment import all_variables

_LIMIT_S = 300.0  # importing torch from a cold network file system can take minutes
_ENGINE = Engine()
_LEAST_GAIN = 0.02  # of the time of a step
_NO_HOST = "launch less often: a larger micro-batch, torch.compile or a CUDA graph"
_NO_LINKS = "send less, or over a faster link"
_TF32 = 'torch.set_float32_matmul_precision("high"): float32 products in TF32'


def write_costs(folder: Path, python: str, device: Mapping[str, str]) -> None:
    """Let the command's interpreter say what the noted calls of each process cost.

    It runs on the emulated card, because a torch without CUDA's libraries needs it to be imported.
    `device` are the variables that say where that is.
    """
    for calls in folder.glob("calls-*"):
        with suppress(OSError, subprocess.SubprocessError), calls.open() as lines:
            done = subprocess.run(
                [python, "-m", "oomdoctor.worker", "--costs"],
                stdin=lines,
                env=all_variables() | dict(device) | {"PYTHONPATH": python_path(folder)},
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            if done.returncode == 0:
                _costs_file(folder, calls.name.rpartition("-")[2]).write_text(done.stdout)


def _costs_file(folder: Path, pid: int | str) -> Path:
    return folder / f"costs-{pid}.json"


def step_of(
    request: WatchRequest, folder: Path, processes: Sequence[Process]
) -> LaunchedStep | None:
    """The last step of the first rank, if it was asked for; its trace is written where wished.

    Raises:
        OomDoctorError: the trace cannot be written (exit 5).
    """
    if request.gpus is None or not request.notes_launches or not processes:
        return None
    first = processes[0]
    step = _read(folder, first.record["pid"])
    card = request.gpus.card
    facts, calibration = card.facts, card.speed
    timed, reason = timed_step(step, facts, calibration)
    made = LaunchedStep(
        rank=first.rank,
        number=step.number,
        launches=dict(sorted(step.kinds.items())),
        products=tuple(
            LaunchedProduct(batch, m, n, k, dtype, count)
            for ((batch, m, n, k), dtype), count in step.products.most_common()
        ),
        unknown_kernels=tuple(_unknown(step)),
        time=None if timed is None else timed.step,
        uncertainty=None if timed is None else timed.uncertainty,
        reason=reason,
        faster=()
        if timed is None or facts is None
        else _faster(step, timed.step, facts, calibration),
        calibrated_by=None if timed is None else card.calibrated_by,
    )
    if request.trace is None or timed is None:
        return made
    document = trace_document(timed.slices, " ".join(request.command), request.gpus.card.name)
    try:
        request.trace.write_text(json.dumps(document), encoding="utf-8")
    except OSError as error:
        text = f"cannot write {request.trace}: {error.strerror}"
        raise machine_error("trace_unwritable", text) from None
    return replace(made, trace=str(request.trace))


def _read(folder: Path, pid: int) -> Step:
    launches = folder / f"launches-{pid}"
    names, costs = folder / f"names-{pid}", _costs_file(folder, pid)
    data = launches.read_bytes() if launches.is_file() else b""
    named = names.read_text(errors="replace").splitlines() if names.is_file() else []
    priced = json.loads(costs.read_text()) if costs.is_file() else []
    of_calls = [None if cost is None else from_json(OpCost, cost) for cost in priced]
    return last_step(list(read_launches(data, named)), of_calls)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step with its estimated time, the launches in order, and the error of the estimate."""

    step: StepTime
    uncertainty: float | None
    slices: list[Slice]


def timed_step(
    step: Step, facts: GpuFacts | None, calibration: Calibration | None = None
) -> tuple[TimedStep | None, str | None]:
    """The time of a step, or why it is not known."""
    if facts is None:
        return None, "a size is not a card, so speed cannot be estimated"
    if step.number is None:
        return None, "no step ended"
    if not step.has_costs():
        return None, "the time of nothing that it launched is known"
    links = None
    if step.ranks > 1:
        links = links_of(facts, step.ranks, min(step.ranks, TrainConfig().gpus_per_node))
        if links is None:
            return None, f"the links of {facts.name} are not known"
    works = [Work(_once(m.forward), _once(m.backward), (), m.host()) for m in step.micro_steps]
    works.append(Work((), (), _once(step.update)))
    sent = [*(micro.transfers for micro in step.micro_steps), step.update_transfers]
    parts, slices, spreads = [], [], []
    for work, transfers in zip(works, sent, strict=True):
        timing = estimated_timing(work, facts, calibration, speed_errors())
        if timing is None:
            return None, _why_untimed(work, facts)
        waits = exposed_seconds(transfers, links, timing.micro_step_s) if links is not None else 0.0
        if work is works[-1]:
            timing = replace(timing, optimizer_step_s=timing.optimizer_step_s + waits)
        else:
            timing = replace(timing, micro_step_s=timing.micro_step_s + waits)
            spreads.append(timing.micro_step_spread or 0.0)
        parts.append(step_time(work, timing, 1, facts, calibration, _ENGINE))
        slices += step_slices(work, parts[-1], facts, calibration, _ENGINE)
    return TimedStep(joined(parts, len(step.micro_steps)), max(spreads), slices), None


def _why_untimed(work: Work, facts: GpuFacts) -> str:
    groups = (untimed_group(cost) for cost, _ in work.micro_step)
    channels = next((each for each in groups if each is not None), None)
    if channels is None:
        return f"the speed of {facts.name} cannot be estimated"
    return (
        f"cuDNN has no fast kernel for convolutions in groups of {channels} channels in "
        "channels-last layout, and the speed of its slow ones is not published; contiguous layout "
        "is faster"
    )


def _faster(
    step: Step, time: StepTime, facts: GpuFacts, calibration: Calibration | None
) -> tuple[FasterStep, ...]:
    """What would make a step faster by more than a little, the fastest first."""
    waits = {of.part: of.seconds for of in time.parts}
    made = [
        FasterStep(_NO_HOST, time.seconds - waits.get("host", 0.0)),
        FasterStep(_NO_LINKS, time.seconds - waits.get("communication", 0.0)),
    ]
    short, _ = timed_step(step.changed(in_tf32), facts, calibration)
    if short is not None and facts.tf32_flops:
        made.append(FasterStep(_TF32, short.step.seconds))
    enough = [each for each in made if each.seconds < time.seconds * (1 - _LEAST_GAIN)]
    return tuple(sorted(enough, key=lambda each: each.seconds))


def _unknown(step: Step) -> Iterator[UnknownKernel]:
    by_name: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for (kernel, numbers), count in step.unknown.items():
        by_name[name_of_kernel(kernel), numbers] += count
    for (name, numbers), count in by_name.most_common():
        yield UnknownKernel(name, numbers[:3], numbers[3:], count)


def _once(costs: Iterable[OpCost]) -> list[tuple[OpCost, int]]:
    return [(cost, 1) for cost in costs]


def name_of_kernel(kernel: str) -> str:
    """The name of a kernel without its parameters, as it is written in C++ if that can be told."""
    whole = demangled(kernel)
    if whole == kernel:
        return kernel
    return re.split(r"[<(]", whole.removeprefix("void ").replace("(anonymous namespace)::", ""))[0]


@cache
def demangled(name: str) -> str:
    """A name of C++ as it is written; the same name where libstdc++ is not there to tell it."""
    with suppress(OSError, AttributeError):
        read = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        read.restype = ctypes.c_void_p
        status = ctypes.c_int()
        made = read(name.encode(), None, None, ctypes.byref(status))
        if made:
            text = ctypes.string_at(made).decode()
            free = ctypes.CDLL(None).free
            free.argtypes = (ctypes.c_void_p,)
            free(made)
            return text
    return name
