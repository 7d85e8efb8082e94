"""The page of `oomdoctor env`: GPUs, capabilities, Slurm, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section
from oomdoctor.render.lists.listing import ListingFormat, grid, render_listing
from oomdoctor.units import DASH, format_bytes

if TYPE_CHECKING:
    from oomdoctor.records.machine import Capability, Gpu, Setting
    from oomdoctor.system.environment import SlurmFacts
    from oomdoctor.system.interpreters.kept import KeptEnvironment

_STATES = {"ok": "yes", "missing": "missing", "unfit": "not supported"}


@dataclass(frozen=True, slots=True)
class Emulation:
    """Whether `python` can run on an emulated GPU; if not, why, and what to type.

    `without_values` says why values of small tensors would be unknown; None if they are known.
    """

    possible: bool
    python: str
    reason: str | None = None
    hint: str | None = None
    without_values: str | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """What `oomdoctor env` says about this machine and this interpreter."""

    gpus: tuple[Gpu, ...]
    driver_version: str | None
    versions: Mapping[str, str | None]
    capabilities: tuple[Capability, ...]
    slurm: SlurmFacts
    settings: tuple[Setting, ...]
    memory_available_bytes: int
    environments: tuple[KeptEnvironment, ...] = ()
    emulation: Emulation | None = None


def render_environment(
    environment: Environment, format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """GPUs and the processes on them, library versions and what they enable, Slurm, settings."""
    able = tuple(
        (c.name, c.version or DASH, _STATES[c.state], c.text) for c in environment.capabilities
    )
    settings = tuple((s.name, s.value or DASH, s.origin) for s in environment.settings)
    page = [
        Section("GPUs", tuple(_gpu_blocks(environment))),
        Section(
            "Capabilities",
            (
                grid(
                    (
                        Column("name"),
                        Column("version", 1, detail="version {}"),
                        Column("ready", tone=True),
                        Column("details", 2, wraps=True),
                    ),
                    able,
                ),
            ),
        ),
        *_emulation(environment.emulation),
        *_environments(environment.environments),
        Section("Slurm", (_slurm(environment.slurm),)),
        Section(
            "Settings",
            (
                grid(
                    (Column("name"), Column("value", 1), Column("source", 2, detail="from {}")),
                    settings,
                ),
            ),
        ),
    ]
    return render_listing("env", {"environment": environment}, page, format, width, color)


def _emulation(found: Emulation | None) -> tuple[Section, ...]:
    if found is None:
        return ()
    use = 'oomdoctor probe MODEL --emulate "RTX 4090"'
    notes = [f"possible with {found.python}: {use}"]
    if found.without_values is not None:
        notes.append(f"values of small tensors are unknown: {found.without_values}")
    if not found.possible:
        notes = [found.reason or "not possible here", *([found.hint] if found.hint else [])]
    return (Section("Emulated GPU", tuple(Note(text, "normal") for text in notes)),)


def _environments(kept: tuple[KeptEnvironment, ...]) -> tuple[Section, ...]:
    if not kept:
        return ()
    columns = (Column("versions"), Column("size", right=True), Column("folder", wraps=True))
    rows = tuple((", ".join(e.versions), format_bytes(e.size_bytes), e.path) for e in kept)
    return (Section("Environments of plan --with", (grid(columns, rows),)),)


def _gpu_blocks(environment: Environment) -> list[Block]:
    rows = tuple(
        (
            str(gpu.index),
            gpu.name,
            format_bytes(gpu.total_bytes),
            format_bytes(gpu.free_bytes),
            gpu.compute_capability or DASH,
            gpu.uuid,
        )
        for gpu in environment.gpus
    )
    driver = f"driver {environment.driver_version}" if environment.driver_version else "no driver"
    memory = f"{format_bytes(environment.memory_available_bytes)} of host memory available"
    blocks: list[Block] = [Note(f"{driver}; {memory}", "normal")]
    if not rows:
        return [*blocks, Note("no GPU; probe uses the CPU", "normal")]
    columns = (
        Column("#", right=True),
        Column("name"),
        Column("memory", 1, right=True, detail="memory {}"),
        Column("free", 1, right=True, detail="{} free"),
        Column("capability", 2, right=True, detail="compute capability {}"),
        Column("uuid", 3),
    )
    blocks.append(Grid(columns, rows))
    held = tuple(
        (str(gpu.index), str(p.pid), p.name or DASH, format_bytes(p.used_bytes))
        for gpu in environment.gpus
        for p in gpu.processes
    )
    if held:
        names = (Column("GPU", right=True), Column("pid", right=True), Column("process"))
        blocks.append(Grid((*names, Column("memory", right=True)), held))
    return blocks


def _slurm(slurm: SlurmFacts) -> Block:
    if slurm.job_id is None:
        where = "login node: Slurm is installed, but this is not a job"
        return Note(where if slurm.on_login_node else "not in a Slurm job", "normal")
    return Facts(
        (
            ("job", slurm.job_id),
            ("node", slurm.node or DASH),
            ("partition", slurm.partition or DASH),
            ("GPUs", slurm.gpus or DASH),
            ("memory", format_bytes(slurm.memory_bytes)),
        )
    )
