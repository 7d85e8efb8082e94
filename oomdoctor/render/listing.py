"""Lists that are no report: GPU facts, catalogue models, recipes, runs, and this environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from oomdoctor.records.config import Recipe, TrainConfig
from oomdoctor.records.machine import Capability, Gpu, GpuFacts, Setting
from oomdoctor.records.report import SCHEMA
from oomdoctor.render.blocks import Block, Column, Facts, Grid, Note, Section
from oomdoctor.render.document import to_json
from oomdoctor.render.table import to_plain, to_terminal
from oomdoctor.system.catalogue import CatalogueModel
from oomdoctor.system.environment import SlurmFacts
from oomdoctor.system.store import RunSummary
from oomdoctor.units import DASH, format_bytes, format_count, format_rate

ListingFormat = Literal["table", "plain", "json"]
_STATES = {"ok": "yes", "missing": "no: missing", "unfit": "no: unfit"}
_RUNG_COLUMNS = ("method", "weights_dtype", "autocast_dtype", "optimizer")


@dataclass(frozen=True, slots=True)
class Environment:
    """What `oomdoctor env` tells about this machine and this interpreter."""

    gpus: tuple[Gpu, ...]
    driver_version: str | None
    versions: Mapping[str, str | None]
    capabilities: tuple[Capability, ...]
    slurm: SlurmFacts
    settings: tuple[Setting, ...]
    memory_available_bytes: int


def render_gpus(
    facts: Sequence[GpuFacts], format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """Published facts of cards; rates are dense peaks, a dash is a figure nobody verified."""
    rows = tuple(
        (
            card.name,
            format_bytes(card.memory_bytes),
            format_bytes(card.torch_total_bytes or card.total_bytes),
            _tera(card.bandwidth_bytes_per_s),
            _tera(card.bf16_flops),
            _tera(card.fp16_flops),
            _tera(card.fp32_flops),
            _tera(card.fp8_flops),
            card.compute_capability or DASH,
        )
        for card in facts
    )
    columns = (
        Column("name"),
        Column("memory", 1, right=True),
        Column("usable", 4, right=True),
        Column("TB/s", 3, right=True),
        Column("bf16", 2, right=True),
        Column("fp16", 7, right=True),
        Column("fp32", 6, right=True),
        Column("fp8", 5, right=True),
        Column("cc", 5, right=True),
    )
    legend = Note(
        "memory: as sold. usable: what the driver or PyTorch reports. bf16, fp16, fp32, fp8: dense "
        "TFLOP/s. TB/s: memory bandwidth. cc: compute capability."
    )
    page = [Section("", (_grid(columns, rows, spill=False), legend))]
    return _render("gpus", {"gpus": tuple(facts)}, page, format, width, color)


def render_models(
    models: Sequence[CatalogueModel],
    format: ListingFormat,
    *,
    width: int = 100,
    color: bool = False,
) -> str:
    """The architectures that can be probed without the network."""
    rows = tuple(
        (m.id, format_count(m.parameters), str(m.config.get("model_type", DASH)), m.auto_class)
        for m in models
    )
    columns = (
        Column("id"),
        Column("parameters", right=True),
        Column("type", 2),
        Column("class", 1),
    )
    page = [Section("", (_grid(columns, rows, spill=False),))]
    return _render("models", {"models": tuple(models)}, page, format, width, color)


def render_recipes(
    recipes: Sequence[Recipe], format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """Recipes with the number of their rungs."""
    rows = tuple((r.name, str(len(r.rungs)), r.source, r.description) for r in recipes)
    columns = (
        Column("recipe"),
        Column("rungs", right=True),
        Column("source", 2, detail="from {}"),
        Column("description", 1, wraps=True),
    )
    page = [Section("", (_grid(columns, rows),))]
    return _render("recipes", {"recipes": tuple(recipes)}, page, format, width, color)


def render_recipe(
    recipe: Recipe, format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """The rungs of one recipe, each with what differs from the defaults."""
    rows = tuple(
        (
            str(number),
            rung.label,
            *(str(getattr(rung.config, name)) for name in _RUNG_COLUMNS),
            rung.config.activation_checkpointing,
            _other_settings(rung.config),
        )
        for number, rung in enumerate(recipe.rungs, 1)
    )
    columns = (
        Column("#", right=True),
        Column("rung"),
        Column("method", 1, detail="method {}"),
        Column("weights", 2, detail="weights {}"),
        Column("autocast", 3, detail="autocast {}"),
        Column("optimizer", 3),
        Column("checkpointing", 4, detail="checkpointing {}"),
        Column("also", 5, wraps=True),
    )
    title = f"{recipe.name} ({recipe.source}): {recipe.description}"
    page = [Section(title, (_grid(columns, rows),))]
    return _render("recipes show", {"recipe": recipe}, page, format, width, color)


def render_runs(
    runs: Sequence[RunSummary], format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """The runs on disk, latest first, with what became of them."""
    rows = tuple(
        (
            run.name,
            run.model or DASH,
            run.device or DASH,
            run.status,
            f"{run.fits} of {run.rungs}" if run.rungs else DASH,
            run.started_at or DASH,
            run.problem or "",
        )
        for run in runs
    )
    columns = (
        Column("run"),
        Column("model", 2, detail="model {}"),
        Column("device", 3, detail="on {}"),
        Column("status", 1),
        Column("fit", 1, right=True, detail="{} rungs fit"),
        Column("started", 3, detail="started {}"),
        Column("problem", 4, wraps=True),
    )
    listed = [{f.name: getattr(run, f.name) for f in fields(RunSummary)} for run in runs]
    content = {"runs": [{**row, "path": str(row["path"])} for row in listed]}
    page = [Section("", (_grid(columns, rows),))]
    return _render("show --list", content, page, format, width, color)


def render_environment(
    environment: Environment, format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """GPUs and who holds their memory, versions and what they make possible, Slurm, settings."""
    able = tuple(
        (c.name, c.version or DASH, _STATES[c.state], c.text) for c in environment.capabilities
    )
    settings = tuple((s.name, s.value or DASH, s.origin) for s in environment.settings)
    page = [
        Section("GPUs", tuple(_gpu_blocks(environment))),
        Section(
            "What is possible here",
            (
                _grid(
                    (
                        Column("name"),
                        Column("version", 1, detail="version {}"),
                        Column("ready", 0, tone=True),
                        Column("what it gives, or what is lacking", 2, wraps=True),
                    ),
                    able,
                ),
            ),
        ),
        Section("Slurm", (_slurm(environment.slurm),)),
        Section(
            "Settings",
            (
                _grid(
                    (Column("name"), Column("value", 1), Column("from", 2, detail="from {}")),
                    settings,
                ),
            ),
        ),
    ]
    return _render("env", {"environment": environment}, page, format, width, color)


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
        return [*blocks, Note("no GPU: probe runs on the CPU", "normal")]
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
        blocks.append(Grid((*names, Column("holds", right=True)), held))
    return blocks


def _slurm(slurm: SlurmFacts) -> Block:
    if slurm.job_id is None:
        where = "a login node: Slurm is installed, but this is not in a job"
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


def _other_settings(config: TrainConfig) -> str:
    """Settings that differ from the defaults and have no column; the command line sets the rest."""
    default = TrainConfig()
    shown = {
        *_RUNG_COLUMNS,
        "activation_checkpointing",
        "sequence_length",
        "effective_batch_size",
    }
    told = []
    for field in fields(TrainConfig):
        value = getattr(config, field.name)
        if field.name not in shown and value != getattr(default, field.name):
            told.append(f"{field.name}={'+'.join(value) if isinstance(value, tuple) else value}")
    return " ".join(told)


def _grid(
    columns: tuple[Column, ...], rows: tuple[tuple[str, ...], ...], *, spill: bool = True
) -> Block:
    return Grid(columns, rows, spill) if rows else Note("nothing")


def _tera(rate: float | None) -> str:
    return format_rate(rate / 1e12 if rate is not None else None)


def _render(
    command: str,
    content: Mapping[str, Any],
    page: list[Section],
    format: ListingFormat,
    width: int,
    color: bool,
) -> str:
    if format == "json":
        return to_json({"schema": SCHEMA, "command": command, **content})
    return to_plain(page) if format == "plain" else to_terminal(page, width=width, color=color)
