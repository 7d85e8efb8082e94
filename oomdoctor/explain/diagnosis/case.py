"""One incident with everything known about it.

The cause rules and the remedies ask their questions through these properties.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from oomdoctor.analysis.memory.closed_form import Term
from oomdoctor.explain.memory.sizes import Sizes
from oomdoctor.explain.memory.terms import terms
from oomdoctor.explain.training.assumed import Training
from oomdoctor.explain.training.known import Setup
from oomdoctor.records.diagnosis import Frame, Incident, LogFacts, MemorySample, Tensor

TRAINING_PHASES = frozenset({"forward", "loss", "backward", "clip", "optimizer"})
# Dialects of devices that several processes and a display can share.
_CUDA_LIKE = frozenset({"cuda_caching_allocator", "hip", "xpu"})
UNDERFLOW = "17179869184"  # GiB: WSL and Windows print a negative difference as unsigned

# What certainly exists together in a phase; optimizer states exist only after the first step.
_WEIGHTS = frozenset({"weights", "quantized weights"})
_PARTS: dict[str, frozenset[str]] = {
    "forward": _WEIGHTS | {"activations"},
    "backward": _WEIGHTS | {"activations", "gradients"},
    "optimizer": _WEIGHTS | {"gradients", "optimizer states"},
}
# What a training does not hold in this phase: less of it would not have helped.
_ELSEWHERE: dict[str, frozenset[str]] = {
    "init": frozenset({"gradients", "optimizer states", "activations", "logits"}),
    "load": frozenset({"gradients", "optimizer states", "activations", "logits"}),
    "forward": frozenset({"logits"}),
    "clip": frozenset({"activations", "logits"}),
    "eval": frozenset({"gradients", "activations", "logits"}),
    "generate": frozenset({"gradients", "activations", "logits"}),
    "optimizer": frozenset({"activations", "logits"}),
}
_FRAMEWORKS = (
    ("trl", r"/trl/|\btrl\."),
    ("transformers", r"transformers/trainer"),
    ("deepspeed", r"/deepspeed/"),
    ("lightning", r"/(?:pytorch_)?lightning/"),
    ("accelerate", r"/accelerate/"),
    ("vllm", r"/vllm/|\bvllm\b"),
    ("transformers", r"/transformers/"),
    ("pytorch", r"/torch/"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """An incident, the log around it, and what is known about model and settings."""

    incident: Incident
    facts: LogFacts
    setup: Setup
    sizes: Sizes | None = None
    training: Training | None = None
    tensors: tuple[Tensor, ...] = ()

    @property
    def phase(self) -> str:
        return self.incident.phase

    @property
    def dialect(self) -> str:
        return self.incident.event.dialect

    @property
    def requested(self) -> int | None:
        return self.incident.event.requested_bytes

    @property
    def capacity(self) -> int | None:
        return self.incident.event.capacity_bytes

    @property
    def free(self) -> int | None:
        return self.incident.event.free_bytes

    @property
    def allocated(self) -> int | None:
        return self.incident.event.allocated_bytes

    @property
    def unallocated(self) -> int | None:
        """Reserved by the allocator but not allocated; also from the older `reserved in total`."""
        event = self.incident.event
        if event.reserved_unallocated_bytes is not None:
            return event.reserved_unallocated_bytes
        if event.reserved_bytes is None or event.allocated_bytes is None:
            return None
        if "cached" in self.message:  # torch 1.0 to 1.3: "cached" does not include "allocated"
            return event.reserved_bytes
        return max(0, event.reserved_bytes - event.allocated_bytes)

    @property
    def reserved(self) -> int | None:
        """Everything that the allocator of this process holds."""
        if self.allocated is None:
            return self.incident.event.reserved_bytes
        pools = self.incident.event.private_pools_bytes or 0
        return self.allocated + (self.unallocated or 0) + pools

    @property
    def own(self) -> int | None:
        """What this process holds on the device."""
        process = self.incident.event.process_bytes
        return process if process is not None else self.reserved

    @property
    def others(self) -> int | None:
        """What other processes hold: as printed, or what is neither free nor ours.

        If the message does not print our own use, up to 1.5 GiB may be our context and libraries.
        """
        told = self.incident.event.other_processes_bytes
        if told is not None:
            return told
        if self.dialect not in _CUDA_LIKE or None in (self.capacity, self.free, self.own):
            return None
        if UNDERFLOW in self.message:
            return None
        assert self.capacity is not None and self.free is not None and self.own is not None
        rest = self.capacity - self.free - self.own
        slack = 0 if self.incident.event.process_bytes is not None else 3 * 2**29
        return rest if rest > slack else 0 if rest >= 0 else None

    @property
    def missing(self) -> int | None:
        """How many more bytes would have been enough; None if the message does not say."""
        event = self.incident.event
        if self.requested is None:
            return None
        room = self.free
        if event.allowed_bytes is not None and self.reserved is not None:
            left = max(0, event.allowed_bytes - self.reserved)
            room = left if room is None else min(room, left)
        if room is None:
            return None
        return max(0, self.requested - room)

    @property
    def needed(self) -> int | None:
        """What has to be freed: what was missing, or more if the closed form says so."""
        if self.missing is None or self.capacity is None or self.phase not in _PARTS:
            return self.missing
        parts = [term.size_bytes for term in self.model_terms() if term.name in _PARTS[self.phase]]
        beyond = sum(parts) - self.capacity
        return max(self.missing, beyond)

    @property
    def refused_though_free(self) -> bool:
        """Whether far more was free than requested, so a full GPU is not the reason."""
        if self.free is None or self.requested is None:
            return False
        return self.free > 1.5 * self.requested + 64 * 2**20

    @property
    def framework(self) -> str | None:
        """The library whose trainer the traceback runs through, the outermost one first."""
        files = " ".join(frame.file.replace("\\", "/") for frame in self.frames)
        told = " ".join((files, *self.incident.lines))
        return next((name for name, words in _FRAMEWORKS if re.search(words, told)), None)

    @property
    def in_training(self) -> bool:
        """Whether gradients are involved, judging by phase and frames."""
        if self.phase in ("optimizer", "clip", "backward"):
            return True
        return self.phase in TRAINING_PHASES and self.grads

    @property
    def grads(self) -> bool:
        """Whether nothing in the frames turns gradients off."""
        return not self.shows(r"no_grad|inference_mode|utils/_contextlib|grad_mode|generate")

    @property
    def batch(self) -> int | None:
        return self.setup.micro_batch_size

    @property
    def step(self) -> int | None:
        return self.incident.step if self.incident.step is not None else self.facts.last_step

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.incident.frames

    @property
    def message(self) -> str:
        return self.incident.event.message

    def figures(self) -> tuple[str, ...]:
        """The message as evidence."""
        return (self.message,) if self.message else self.incident.lines[:1]

    def shows(self, pattern: str) -> bool:
        """Whether a frame's file, function or code matches."""
        return bool(self.seen(pattern))

    def seen(self, pattern: str) -> tuple[str, ...]:
        """The frames that match, innermost first, quoted; at most three."""
        found = [quote(f) for f in reversed(self.frames) if re.search(pattern, quote(f))]
        return tuple(found[:3])

    def logged(self, pattern: str) -> tuple[str, ...]:
        """The quoted lines of the incident and of the log's evidence that match; at most three."""
        told = [line for lines in self.facts.evidence.values() for line in lines]
        lines = dict.fromkeys((*self.incident.lines, *told))
        return tuple(line for line in lines if re.search(pattern, line, re.IGNORECASE))[:3]

    def innermost(self, pattern: str, count: int = 4) -> tuple[str, ...]:
        """The matching frames among the last `count`."""
        return tuple(q for f in reversed(self.frames[-count:]) if re.search(pattern, q := quote(f)))

    def tensor_is(self, word: str) -> bool:
        """Whether the most likely tensor has this word in its name."""
        return bool(self.tensors) and word in self.tensors[0].name

    def model_terms(self) -> tuple[Term, ...]:
        """What each part needs according to the closed form; empty without a known model."""
        if self.sizes is None or self.training is None:
            return ()
        return terms(self.sizes, self.training)

    def elsewhere(self) -> frozenset[str]:
        """The names of the parts that are not on the device at the moment of the failure."""
        if self.incident.recomputing:  # layers are recomputed after the loss is done
            return frozenset({"logits"})
        return _ELSEWHERE.get(self.phase, frozenset())

    def term(self, name: str) -> Term | None:
        """One part by its name."""
        return next((term for term in self.model_terms() if term.name == name), None)

    def samples(self) -> tuple[MemorySample, ...]:
        """Memory over the steps, as the log prints it."""
        return self.facts.step_memory or self.facts.gpu_readings


def quote(frame: Frame) -> str:
    """A frame, written as a line of a traceback."""
    number = "" if frame.line is None else f", line {frame.line}"
    code = f": {frame.code}" if frame.code else ""
    path = frame.file.replace("\\", "/")
    return f'File "{path}"{number}, in {frame.function}{code}'
