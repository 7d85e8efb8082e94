"""The page of `oomdoctor env`: GPUs, capabilities, Slurm, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.render.blocks import Block, Column, Facts, Note, Section, figures, table_of
from oomdoctor.render.lists import Listing, listed
from oomdoctor.units import DASH, format_bytes

if TYPE_CHECKING:
    from oomdoctor.records.job.machine import Capability, Gpu, Setting
    from oomdoctor.system.environment import SlurmFacts
    from oomdoctor.system.interpreters.venvs import KeptEnvironment

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
class CalibratedDevice:
    """A device whose operators `probe --calibrate` measured; `measured_at` is in UTC, ISO 8601."""

    name: str
    measured_at: str | None
    driver_version: str | None
    torch: str | None


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
    environments: tuple[KeptEnvironment, ...]
    emulation: Emulation
    calibrated: tuple[CalibratedDevice, ...] = ()


def environment_page(environment: Environment) -> Listing:
    """GPUs and the processes on them, library versions and what they enable, Slurm, settings."""
    able = listed(
        environment.capabilities,
        (
            (Column("name"), lambda row: row.name),
            (Column("version", 1, detail="version {}"), lambda row: row.version or DASH),
            (Column("ready", tone=True), lambda row: _STATES[row.state]),
            (Column("details", 2, wraps=True), lambda row: row.text),
        ),
    )
    settings = listed(
        environment.settings,
        (
            (Column("name"), lambda row: row.name),
            (Column("value", 1), lambda row: row.value or DASH),
            (Column("source", 2, detail="from {}"), lambda row: row.origin),
        ),
    )
    page = (
        Section("GPUs", tuple(_gpu_blocks(environment))),
        Section("Capabilities", (able,)),
        _emulation(environment.emulation),
        *_environments(environment.environments),
        *_calibrated(environment.calibrated),
        Section("Slurm", (_slurm(environment.slurm),)),
        Section("Settings", (settings,)),
    )
    return Listing("env", {"environment": environment}, page)


def _emulation(emulation: Emulation) -> Section:
    use = 'oomdoctor probe MODEL --emulate "RTX 4090"'
    notes = [f"possible with {emulation.python}: {use}"]
    if emulation.without_values is not None:
        notes.append(f"values of small tensors are unknown: {emulation.without_values}")
    if not emulation.possible:
        notes = [
            emulation.reason or "not possible here",
            *([emulation.hint] if emulation.hint else []),
        ]
    return Section("Emulated GPU", tuple(Note(text, "normal") for text in notes))


def _environments(kept: tuple[KeptEnvironment, ...]) -> tuple[Section, ...]:
    if not kept:
        return ()
    table = table_of(
        kept,
        (
            (Column("versions"), lambda row: ", ".join(row.versions)),
            (figures("size"), lambda row: format_bytes(row.size_bytes)),
            (Column("folder", wraps=True), lambda row: row.path),
        ),
    )
    return (Section("Environments of plan --with", (table,)),)


def _calibrated(devices: tuple[CalibratedDevice, ...]) -> tuple[Section, ...]:
    if not devices:
        return ()
    table = table_of(
        devices,
        (
            (Column("device", wraps=True), lambda row: row.name),
            (Column("measured"), lambda row: (row.measured_at or DASH)[:10]),
            (Column("driver", 1), lambda row: row.driver_version or DASH),
            (Column("torch", 1), lambda row: row.torch or DASH),
        ),
    )
    return (Section("Measured by probe --calibrate", (table,)),)


def _gpu_blocks(environment: Environment) -> list[Block]:
    driver = f"driver {environment.driver_version}" if environment.driver_version else "no driver"
    memory = f"{format_bytes(environment.memory_available_bytes)} of host memory available"
    blocks: list[Block] = [Note(f"{driver}; {memory}", "normal")]
    if not environment.gpus:
        return [*blocks, Note("no GPU; probe uses the CPU", "normal")]
    gpus = table_of(
        environment.gpus,
        (
            (figures("#"), lambda gpu: str(gpu.index)),
            (Column("name"), lambda gpu: gpu.name),
            (figures("memory", 1), lambda gpu: format_bytes(gpu.total_bytes)),
            (figures("free", 1, "{} free"), lambda gpu: format_bytes(gpu.free_bytes)),
            (
                figures("capability", 2, "compute capability {}"),
                lambda gpu: gpu.compute_capability or DASH,
            ),
            (Column("uuid", 3), lambda gpu: gpu.uuid),
        ),
    )
    held = table_of(
        [(gpu.index, process) for gpu in environment.gpus for process in gpu.processes],
        (
            (figures("GPU"), lambda row: str(row[0])),
            (figures("pid"), lambda row: str(row[1].pid)),
            (Column("process"), lambda row: row[1].name or DASH),
            (figures("memory"), lambda row: format_bytes(row[1].used_bytes)),
        ),
    )
    return [*blocks, gpus, *([held] if held.rows else [])]


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
