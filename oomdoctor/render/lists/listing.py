"""The lists: cards, built-in models, recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from oomdoctor.render.blocks import Block, Column, Grid, Note, Section
from oomdoctor.render.formats.table import to_plain, to_terminal
from oomdoctor.units import DASH, format_bytes, format_count, format_rate

if TYPE_CHECKING:
    from oomdoctor.records.config import Recipe, TrainConfig
    from oomdoctor.records.machine import GpuFacts
    from oomdoctor.system.catalogue import CatalogueModel

ListingFormat = Literal["table", "plain", "json"]
_RUNG_COLUMNS = ("method", "weights_dtype", "autocast_dtype", "optimizer")


def render_gpus(
    facts: Sequence[GpuFacts], format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """Published facts of cards. Rates are dense peaks; a dash is a number that is not verified."""
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
        Column("reported", 4, right=True),
        Column("TB/s", 3, right=True),
        Column("bf16", 2, right=True),
        Column("fp16", 7, right=True),
        Column("fp32", 6, right=True),
        Column("fp8", 5, right=True),
        Column("capability", 5, right=True),
    )
    legend = Note(
        "reported: memory that PyTorch or the driver sees. TB/s: memory bandwidth. bf16 to fp8: "
        "dense TFLOP/s."
    )
    page = [Section("", (grid(columns, rows, spill=False), legend))]
    return render_listing("gpus", {"gpus": tuple(facts)}, page, format, width, color)


def render_models(
    models: Sequence[CatalogueModel],
    format: ListingFormat,
    *,
    width: int = 100,
    color: bool = False,
) -> str:
    """The models whose architecture is built in, so that they need no network."""
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
    page = [Section("", (grid(columns, rows, spill=False),))]
    return render_listing("models", {"models": tuple(models)}, page, format, width, color)


def render_recipes(
    recipes: Sequence[Recipe], format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """Recipes and how many rungs each has."""
    rows = tuple((r.name, str(len(r.rungs)), r.source, r.description) for r in recipes)
    columns = (
        Column("recipe"),
        Column("rungs", right=True),
        Column("source", 2, detail="from {}"),
        Column("description", 1, wraps=True),
    )
    page = [Section("", (grid(columns, rows),))]
    return render_listing("recipes", {"recipes": tuple(recipes)}, page, format, width, color)


def render_recipe(
    recipe: Recipe, format: ListingFormat, *, width: int = 100, color: bool = False
) -> str:
    """The rungs of one recipe, each with the settings that differ from the defaults."""
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
        Column("other settings", 5, wraps=True),
    )
    title = f"{recipe.name} ({recipe.source}): {recipe.description}"
    page = [Section(title, (grid(columns, rows),))]
    return render_listing("recipes show", {"recipe": recipe}, page, format, width, color)


def _other_settings(config: TrainConfig) -> str:
    """Settings that differ from the defaults and have no column.

    Sequence length and effective batch size are left out: the command line sets them.
    """
    default = type(config)()
    shown = {
        *_RUNG_COLUMNS,
        "activation_checkpointing",
        "sequence_length",
        "effective_batch_size",
    }
    settings = []
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in shown and value != getattr(default, field.name):
            settings.append(
                f"{field.name}={'+'.join(value) if isinstance(value, tuple) else value}"
            )
    return " ".join(settings)


def grid(
    columns: tuple[Column, ...], rows: tuple[tuple[str, ...], ...], *, spill: bool = True
) -> Block:
    """A grid, or a note if there are no rows."""
    return Grid(columns, rows, spill) if rows else Note("nothing to list")


def _tera(rate: float | None) -> str:
    return format_rate(rate / 1e12 if rate is not None else None)


def render_listing(
    command: str,
    content: Mapping[str, Any],
    page: list[Section],
    format: ListingFormat,
    width: int,
    color: bool,
) -> str:
    """The content as a JSON envelope, or the page as a table."""
    if format == "json":
        from oomdoctor.records.report import SCHEMA
        from oomdoctor.render.formats.json_document import to_json

        return to_json({"schema": SCHEMA, "command": command, **content})
    if format == "plain":
        return to_plain(page, color=color)
    return to_terminal(page, width=width, color=color)
