"""Answer inspections and simulations from what earlier ones found, without a worker.

What is kept of a simulation are the recordings of its step, which hold for other budgets, batch
sizes and often other cards. The same code predicts from them here as in the worker that made them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from oomdoctor.analysis.simulator.orders.depth import IrregularError
from oomdoctor.analysis.simulator.playback import NewStructureError
from oomdoctor.analysis.simulator.predict import Knowledge, predictions
from oomdoctor.analysis.simulator.recorded import without_collection
from oomdoctor.analysis.simulator.recording_bytes import Pack, opened, packed
from oomdoctor.analysis.simulator.recordings import not_recorded
from oomdoctor.analysis.simulator.zero import alone_config
from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.records import codec
from oomdoctor.records.configuration.config import TrainConfig, adapts_all_linear, is_zero
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.records.job.simulation import OtherLength
from oomdoctor.system.catalogue import speed_errors
from oomdoctor.system.environment import shaping_variables, simulations_limit
from oomdoctor.system.machine.libraries import versions_of
from oomdoctor.system.store import simulations

_KEEPING = ("dynamic", "longrope", '"su"')  # kinds of rotary embeddings
_WHOLE = "reply "  # how a kept reply begins, as opposed to recordings


@dataclass(frozen=True, slots=True)
class Known:
    """A reply from what was kept, and when that was found."""

    reply: Reply
    made_at: str


class Memory:
    """What earlier runs found with an interpreter's libraries.

    With `fresh`, nothing is answered, but what is found is kept. `failure` is why something could
    not be kept.
    """

    def __init__(self, python: str, environment: Mapping[str, str], *, fresh: bool = False) -> None:
        self._python, self._environment, self._fresh = python, environment, fresh
        self.failure: str | None = None
        self._made: set[str] = set()  # keys of what this run found itself

    @cached_property
    def _libraries(self) -> dict[str, str] | None:
        return versions_of(self._python, self._environment)

    def keeps(self, job: ProbeJob) -> bool:
        """Whether something is kept for a job; it may not be enough for an answer."""
        key = self.key(job)
        return key is not None and self._may_read(key) and simulations.has(key)

    def answer(self, job: ProbeJob) -> Known | None:
        """The reply to a job, if what was kept is enough for it."""
        key = self.key(job)
        kept = self._read(key)
        if key is None or kept is None:
            return None
        try:
            if kept.data.startswith(_WHOLE.encode()):
                text = kept.data.decode().removeprefix(_WHOLE)
                return Known(codec.loads(Reply, text), kept.made_at)
            assert job.simulation is not None
            with without_collection():
                pack = opened(kept.data)
                before = len(pack.computed)
                knowledge = Knowledge(speed_errors(), parse_oom)
                predicted = predictions(job.config, job.simulation, pack, not_recorded, knowledge)
            if len(pack.computed) > before:
                with suppress(OSError):
                    simulations.write(key, packed(pack), kept.made_at)
        except (NewStructureError, IrregularError):
            return None  # a worker records the rest
        except (ValueError, LookupError, TypeError, ArithmeticError, AssertionError):
            return None  # damaged in a way that only its use shows
        return Known(Reply(status="predicted", predictions=predicted), kept.made_at)

    def recordings(self, job: ProbeJob) -> Pack | None:
        """The recordings of a simulation that was kept; None if there are none."""
        kept = self._read(self.key(job))
        if kept is None or kept.data.startswith(_WHOLE.encode()):
            return None
        try:
            return opened(kept.data)
        except ValueError:
            return None

    def prepared(self, jobs: Sequence[ProbeJob], folder: Path) -> ProbeJob:
        """The first job, with the sequence lengths of the others, which differ in it alone.

        Each gets a file for its recordings, which has those that are known.
        """
        job = jobs[0]
        if job.simulation is None or self.key(job) is None:
            return job
        for each in jobs:
            kept = self._read(self.key(each))
            if kept is not None:
                _file(each, folder).write_bytes(kept.data)
        others = tuple(
            OtherLength(each.config.sequence_length, str(_file(each, folder))) for each in jobs[1:]
        )
        request = replace(job.simulation, recordings=str(_file(job, folder)), other_lengths=others)
        return replace(job, simulation=request)

    def may_share(self, job: ProbeJob) -> bool:
        """Whether one model can record the job at several lengths, without a trace of the others.

        Some rotary embeddings keep what they computed for the longest row so far, and custom code
        may keep anything.
        """
        rope = json.dumps([value for name, value in job.model.config.items() if "rope" in name])
        keeps = any(word in rope for word in _KEEPING)
        own_code = job.model.trust_remote_code and "auto_map" in job.model.config
        return job.mode == "simulate" and not keeps and not own_code and self.key(job) is not None

    def keep(self, job: ProbeJob, reply: Reply, folder: Path, made_at: str) -> None:
        """Keep what a worker found; if that fails, `failure` says why."""
        file = _file(job, folder)
        try:
            key = self.key(job)
            if key is None:
                return
            if reply.status == "predicted" and file.is_file():
                simulations.write(key, file.read_bytes(), made_at)
                self._made.add(key)
            elif reply.status in ("inspected", "unsupported"):
                simulations.write(key, (_WHOLE + codec.dumps(reply)).encode(), made_at)
        except OSError as error:
            self.failure = error.strerror or str(error)
        finally:
            file.unlink(missing_ok=True)

    def _read(self, key: str | None) -> simulations.Kept | None:
        return simulations.read(key) if key is not None and self._may_read(key) else None

    def _may_read(self, key: str) -> bool:
        return not self._fresh or key in self._made

    def key(self, job: ProbeJob) -> str | None:
        """A hash of all that shapes what the job finds; None if that cannot be known."""
        if job.mode not in ("inspect", "simulate") or simulations_limit() == 0:
            return None
        if job.mode == "inspect" and job.device_type != "cpu":
            return None  # it also reports the device
        code = _custom_code(job.model)
        libraries = self._libraries if code is not None else None
        if libraries is None:
            return None
        model = replace(job.model, id="", source="local", parameters=None, revision=None, path=None)
        content: dict[str, Any] = {
            "mode": job.mode,
            "lora": adapts_all_linear(job.config),  # an inspection then names the layers
            "model": codec.to_json(model),
            "code": code,
            "libraries": libraries,
            "variables": shaping_variables(),
            "oomdoctor": simulations.source_key(),
        }
        if job.simulation is not None:
            # What is recorded depends neither on the batch nor on the allocator, nor on what else
            # a GRPO job has on the card.
            config = replace(
                _recorded(job.config),
                micro_batch_size=AUTO,
                effective_batch_size=1,
                allocator="default",
                vllm_gpu_memory_utilization=0.0,
                vllm_enable_sleep_mode=False,
                rollout_offload="none",
                critic="none",
                reward_model="none",
            )
            content |= {
                "config": codec.to_json(config),
                "seed": job.seed,
                "stacks": codec.to_json(job.simulation.stacks),
                "as_cuda": job.simulation.as_cuda,
            }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _recorded(config: TrainConfig) -> TrainConfig:
    """What is recorded of a rung, with all that decides whether it is supported.

    A rung with ZeRO is recorded on one GPU, which is the same for any number of them.
    """
    if not is_zero(config):
        return config
    return replace(alone_config(config), sharding=config.sharding, offload=config.offload)


def _file(job: ProbeJob, folder: Path) -> Path:
    """Where a worker writes the recordings of a job."""
    return folder / f"recordings-{job.config.sequence_length}"


def _custom_code(spec: ModelSpec) -> str | None:
    """A hash of the model's own code; empty if it has none, None if it is not all in its folder."""
    automatic = spec.config.get("auto_map")
    if not (spec.trust_remote_code and automatic):
        return ""
    files = sorted(Path(spec.path).rglob("*.py")) if spec.path is not None else []
    if not files or "--" in json.dumps(automatic):
        return None
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(
                str(file.relative_to(spec.path or "")).encode() + b"\0" + file.read_bytes()
            )
    except OSError:
        return None
    return digest.hexdigest()
