"""One incident with everything known about it.

The cause rules and the remedies ask their questions through these properties.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from oomdoctor.analysis.memory.closed_form import Term
from oomdoctor.analysis.memory.overhead import context_bytes
from oomdoctor.explain.diagnosis import usage
from oomdoctor.explain.evidence import SnapshotEvidence
from oomdoctor.explain.memory.model_sizes import Sizes
from oomdoctor.explain.memory.moments import Moment, at_phase, peak, serving
from oomdoctor.explain.reading.lines.traceback import quote, scores_line
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.explain.reading.programs import Program, around, around_of, program_of, programs
from oomdoctor.explain.training.assumed import Training
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.phases import OF_A_STEP
from oomdoctor.records.report.diagnosis import (
    Frame,
    Incident,
    LogFacts,
    MemorySample,
    Resource,
    Tensor,
)
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.units import GIB

_RE = patterns("case")
_OF_TRAINING = {"optimizer", "accumulation_steps", "method"}

_SHARED_MEMORY = {"amd apu", "spark"}  # GPUs whose memory is the system's
_ALIKE = 0.15  # how far what a second rank holds may be from what the first holds
_NEIGHBORS = 16  # how far the ids of two ranks that start together may be from each other


@dataclass(frozen=True)
class Case:
    """An incident, the log around it, and what is known about model and settings.

    It has no slots, because the search for remedies asks for its totals thousands of times.
    """

    incident: Incident
    facts: LogFacts
    setup: PartialConfig
    sizes: Sizes | None = None
    training: Training | None = None
    tensors: tuple[Tensor, ...] = ()
    snapshot: SnapshotEvidence | None = None
    short_bytes: int | None = None  # of the whole training, where a run showed it
    batch_divisor: int | None = None  # of the micro-batch, with which a replay fits

    @property
    def phase(self) -> str:
        return self.incident.phase

    @property
    def resource(self) -> Resource:
        return self.incident.resource

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
        return usage.unallocated(self.incident.event)

    @property
    def reserved(self) -> int | None:
        return usage.reserved(self.incident.event)

    @property
    def others(self) -> int | None:
        """What processes hold that are not part of this job; None if nothing shows such."""
        if self.program.kind == "rl" or self.ranks_share or self.around & _SHARED_MEMORY:
            return None
        held = usage.others(self.incident.event)
        if held is None:
            return None
        # Workers of an engine and other ranks may have a context on this GPU too; ranks' are alike.
        contexts = [
            process.used_bytes
            for process in self.incident.listed_processes
            if process.used_bytes < GIB
        ]
        alike = self.program.kind != "engine" and len(contexts) > 1 and len(set(contexts)) == 1
        if self.parallel < 2 and not alike:
            return held
        return max(0, held - sum(contexts))

    @property
    def parallel(self) -> int:
        """Over how many GPUs an engine splits the model, as the log says; 1 if it does not."""
        told = self.facts.settings.get("tensor_parallel_size")
        return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else 1

    @cached_property
    def ranks_share(self) -> bool:
        """Whether several processes of a launcher use one GPU.

        torchrun starts the script once for each GPU, and each process then takes the first one:
        those of an engine load the whole model. Other users' processes may be listed as well, so
        those of a training have to be neighbors.
        """
        large = [process for process in self.incident.listed_processes if process.used_bytes >= GIB]
        launched = "launcher" in self.facts.mentions
        own, held = self.reserved or 0, usage.others(self.incident.event) or 0
        if launched and not large and own >= GIB:
            return abs(held - own) < own * _ALIKE
        elsewhere = (self.incident.rank or 0) > 0 and "GPU 0 has" in self.message and len(large) > 2
        if len(large) < 2 or not (launched or elsewhere):
            return False
        pids = [process.pid for process in large]
        return self.program.kind == "engine" or max(pids) - min(pids) < _NEIGHBORS * len(pids)

    @property
    def missing(self) -> int | None:
        return usage.missing(self.incident.event)

    @property
    def trained(self) -> Training:
        """The training of a case that has a total."""
        assert self.training is not None
        return self.training

    @cached_property
    def rung(self) -> TrainConfig | None:
        """The training as a rung; None if too little is known of it, or no rung can do it."""
        return None if self.training is None else self.training.rung

    @cached_property
    def needed(self) -> int | None:
        """What has to be freed: what was missing, or more if the arithmetic or a run says so."""
        if self.short_bytes is not None:
            return self.short_bytes
        total, room = self.total, self.room
        if not self.beyond or total is None or room is None:
            return self.missing
        return max(self.missing or 0, total - room)

    @cached_property
    def room(self) -> int | None:
        """What this process may use of the GPU at most."""
        if self.capacity is None:
            return None
        allowed = self.incident.event.allowed_bytes
        room = self.capacity - (self.others or 0)
        return room if allowed is None else min(room, allowed)

    @cached_property
    def beyond(self) -> bool:
        """Whether the arithmetic alone says that this cannot fit on the GPU."""
        if self.sizes is None or self.training is None or self.program.kind == "engine":
            return False  # an engine may split or quantize the weights
        if self.ranks_share:
            return False  # each rank on its own GPU may hold a part
        if self.capacity is None or self.resource != "gpu":
            return False
        total = self.whole(self.training).size_bytes + self.context
        # A single request above the total: another model, or other settings.
        return total > self.capacity and total >= (self.requested or 0)

    def whole(self, training: Training) -> Moment:
        """The moment that needs the most in the whole run."""
        assert self.sizes is not None  # for the type checker
        if not self.trains:
            return serving(self.sizes, training)
        if self.phase in ("eval", "generate"):
            return at_phase(self.sizes, training, self.phase)
        return peak(self.sizes, training)

    def moment(self, training: Training | None = None) -> Moment | None:
        """What the training (or a changed one) needs at the moment that decides.

        That is its peak if it cannot fit, otherwise the phase that failed. None without a model.
        """
        trained = training or self.training
        if self.sizes is None or trained is None or self.resource != "gpu":
            return None
        if self.beyond or not self.trains:
            return self.whole(trained)
        return at_phase(self.sizes, trained, self.phase)

    @cached_property
    def total(self) -> int | None:
        """The bytes of that moment and the context; None without a model."""
        moment = self.moment()
        return None if moment is None else moment.size_bytes + self.context

    @property
    def at_least(self) -> bool:
        """Whether the total leaves out what grows with batch and length."""
        return self.training is not None and not self.training.tokens and self.trains

    @cached_property
    def context(self) -> int:
        """Memory of the process outside PyTorch's allocator: as printed, or usual for the card."""
        outside = usage.outside_allocator(self.incident.event)
        if outside is not None:
            return outside
        name = self.facts.gpu_name
        return context_bytes(find_gpu(name, self.capacity) if name else None).likely

    @cached_property
    def trains(self) -> bool:
        """Whether this run trains a model: by its phase, its settings or its frames."""
        if self.program.kind in ("engine", "diffusion", "inference"):
            return False
        if self.phase in ("clip", "optimizer", "backward", "loss", "save"):
            return True
        if self.phase in ("eval", "generate"):
            told = bool(_OF_TRAINING & self.setup.keys())
            told = told or (not self.frames and "evaluation" in self.facts.mentions)
            return told or self.shows(r"\btrain(?:er)?(?:\b|_pt_utils)")
        return self.grads and not self._only_runs

    @property
    def _only_runs(self) -> bool:
        """Whether the script is named after a test or prediction, and nothing shows a training."""
        scripts = [f.file.replace("\\", "/") for f in self.frames if f.function == "<module>"]
        runs = any(map(_RE["runs"].search, scripts))
        told = _OF_TRAINING & self.setup.keys()
        return runs and not self.shows(r"train|loss|backward") and not told

    @cached_property
    def writes_text(self) -> bool:
        """Whether the model predicts words of a vocabulary, as far as the text shows it."""
        if self.shows(_RE["not_language"]):
            return False
        is_text = self.sizes is not None or self.program.text
        return is_text or self.shows(_RE["language"]) or bool(self.logged(_RE["language"].pattern))

    @property
    def refused_though_free(self) -> bool:
        """Whether far more was free than requested, so a full GPU is not the reason."""
        if self.free is None or self.requested is None:
            return False
        return self.free > 1.5 * self.requested + 64 * 2**20

    @property
    def one_buffer(self) -> bool:
        """Whether a single buffer is larger than the device allows, whatever is free."""
        return "Invalid buffer size" in self.message

    @cached_property
    def scores_line(self) -> Frame | None:
        """The line that failed, if it computes attention scores."""
        return scores_line(self.frames) if self.resource == "gpu" else None

    @cached_property
    def program(self) -> Program:
        """The program that failed; plain PyTorch if nothing names one."""
        return self._named or programs()[-1]

    @cached_property
    def _named(self) -> Program | None:
        return program_of(self.incident, self.facts.mentions)

    @cached_property
    def around(self) -> frozenset[str]:
        """What runs around the program: what the text names, and what its message implies."""
        seen = {name for name in self.facts.mentions if name in around()}
        if self.dialect == "slurm" and not seen & around_of("scheduler"):
            seen.add("slurm")
        if _RE["limited"].search(self.message) and not seen & around_of("container"):
            seen |= around_of("container")
        return frozenset(seen)

    @property
    def framework(self) -> str | None:
        """The program, or the library whose trainer it calls; None if nothing names one."""
        return None if self._named is None else self._named.library

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The program's name, what it does, and its marks.

        A training that does not train is inference.
        """
        kind = self.program.kind
        if kind == "training" and not self.trains:
            kind = "inference"
        also = ["training"] if kind == "rl" else []
        also += self.program.marks()
        return frozenset({self.program.name, kind, *also})

    @property
    def in_training(self) -> bool:
        """Whether gradients are involved, judging by phase and frames."""
        if self.phase in ("optimizer", "clip", "backward"):
            return True
        return self.phase in OF_A_STEP and self.grads

    @property
    def grads(self) -> bool:
        """Whether nothing in the frames turns gradients off."""
        return not self.shows(r"no_grad|inference_mode|utils/_contextlib|grad_mode|generate")

    @property
    def batch(self) -> int | None:
        return self.setup.get("micro_batch_size")

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

    def shows(self, pattern: str | re.Pattern[str]) -> bool:
        """Whether a frame's file, function or code matches."""
        return bool(self.seen(pattern))

    def seen(self, pattern: str | re.Pattern[str]) -> tuple[str, ...]:
        """The frames that match, innermost first, quoted; at most three."""
        quoted = [quote(f) for f in reversed(self.frames) if re.search(pattern, quote(f))]
        return tuple(quoted[:3])

    def logged(self, pattern: str) -> tuple[str, ...]:
        """The quoted lines of the incident and of the log's evidence that match; at most three."""
        told = (*self.facts.evidence.values(), *self.facts.mentions.values())
        lines = dict.fromkeys(chain(self.incident.lines, *told))
        matching = [line for line in lines if re.search(pattern, line, re.IGNORECASE)]
        if not matching and re.search(pattern, self.message, re.IGNORECASE):
            matching = [self.message]  # its lines were wrapped in the middle of the words
        return tuple(matching[:3])

    def innermost(self, pattern: str, count: int = 4) -> tuple[str, ...]:
        """The matching frames among the last `count`."""
        return tuple(q for f in reversed(self.frames[-count:]) if re.search(pattern, q := quote(f)))

    @property
    def gathered(self) -> tuple[str, ...]:
        """The innermost frames that gather sharded weights, whose size no batch changes."""
        return self.innermost(_RE["gathers"].pattern)

    def on_logits(self) -> tuple[str, ...]:
        """The innermost frames that work on the logits of a vocabulary."""
        return self.innermost(_RE["logits"].pattern)

    def tensor_is(self, word: str) -> bool:
        """Whether the most likely tensor has this word in its name."""
        return bool(self.tensors) and word in self.tensors[0].name

    def model_terms(self) -> tuple[Term, ...]:
        """What each part needs at the moment that decides; empty without a known model."""
        moment = self.moment()
        return () if moment is None else moment.terms

    def term(self, name: str) -> Term | None:
        """One part by its name."""
        return next((term for term in self.model_terms() if term.name == name), None)

    def samples(self) -> tuple[MemorySample, ...]:
        """Memory over the steps, as the log prints it."""
        return self.facts.step_memory or self.facts.gpu_readings
