"""The predicted step in the format of Perfetto and chrome://tracing.

The format is Google's "Trace Event Format": complete events ("X") with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oomdoctor.analysis.simulator.step_slices import Slice
from oomdoctor.records.facts.phases import PHASES
from oomdoctor.records.facts.step_parts import STEP_PARTS

_KERNELS, _PHASES = 1, 2  # the tracks


def trace_document(slices: Sequence[Slice], label: str, card: str) -> dict[str, Any]:
    """A trace with the slices on one track, and their phases on another."""
    events = [_name("process_name", f"{label} on {card}: predicted, not measured", _KERNELS)]
    events += [_name("thread_name", "phases", _PHASES), _name("thread_name", "kernels", _KERNELS)]
    now, phase, began = 0.0, "", 0.0
    for each in slices:
        if each.phase != phase:
            if phase:
                events.append(_event(_words(phase), _PHASES, began, now))
            phase, began = each.phase, now
        args: dict[str, Any] = {"phase": _words(each.phase)}
        if each.flops or each.bytes_moved:
            args |= {"FLOPs": each.flops, "bytes": each.bytes_moved, "dtype": each.dtype}
        if each.shape:
            args["shape"] = list(each.shape)
        if each.layer is not None:
            args["layer"] = f"{each.layer[0]} of {each.layer[1]} that repeat"
        kind = STEP_PARTS[each.part].words if each.part is not None else "micro-step"
        end = now + each.seconds
        events.append(_event(each.name, _KERNELS, now, end) | {"cat": kind, "args": args})
        now = end
    if phase:
        events.append(_event(_words(phase), _PHASES, began, now))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _words(phase: str) -> str:
    return PHASES[phase].noun if phase in PHASES else "further micro-steps"


def _event(name: str, track: int, begin_s: float, end_s: float) -> dict[str, Any]:
    times = {"ts": begin_s * 1e6, "dur": (end_s - begin_s) * 1e6}
    return {"name": name, "ph": "X", "pid": 1, "tid": track, **times}


def _name(what: str, name: str, track: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}
