"""The lists: cards, built-in models, recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oomdoctor.render.blocks import Block, Cells, Column, Note, Section, T, figures, table_of
from oomdoctor.render.formats import Style
from oomdoctor.render.formats.table import drawn
from oomdoctor.units import DASH, format_bytes, format_count, format_rate

if TYPE_CHECKING:
    from oomdoctor.records.configuration.config import Recipe
    from oomdoctor.records.job.machine import GpuFacts
    from oomdoctor.system.catalogue import CatalogueModel


@dataclass(frozen=True, slots=True)
class Listing:
    """What a command lists: the `content` of its JSON, its page, and its rows of CSV if any."""

    command: str
    content: Mapping[str, Any]
    page: tuple[Section, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()

    def text(self, format: str, style: Style) -> str:
        """The list in a format; a table is drawn for a terminal, or has plain rows for a pipe."""
        if format == "json":
            from oomdoctor.records.report.report import SCHEMA
            from oomdoctor.render.formats.json_document import to_json

            return to_json({"schema": SCHEMA, "command": self.command, **self.content})
        if format == "csv":
            from oomdoctor.render.formats.csv_rows import as_csv

            return as_csv(self.rows)
        if format == "markdown":
            from oomdoctor.render.formats.markdown import to_markdown

            return to_markdown(self.page)
        return drawn(self.page, style)


def gpu_list(facts: Sequence[GpuFacts]) -> Listing:
    """Published facts of cards. Rates are dense peaks; a dash is a number that is not verified."""
    table = listed(
        facts,
        (
            (Column("name"), lambda card: card.name),
            (figures("memory", 1), lambda card: format_bytes(card.memory_bytes)),
            (
                figures("reported", 4),
                lambda card: format_bytes(card.torch_total_bytes or card.total_bytes),
            ),
            (figures("TB/s", 3), lambda card: _tera(card.bandwidth_bytes_per_s)),
            (figures("bf16", 2), lambda card: _tera(card.bf16_flops)),
            (figures("fp16", 7), lambda card: _tera(card.fp16_flops)),
            (figures("fp32", 6), lambda card: _tera(card.fp32_flops)),
            (figures("fp8", 5), lambda card: _tera(card.fp8_flops)),
            (figures("capability", 5), lambda card: card.compute_capability or DASH),
        ),
        spill=False,
    )
    legend = Note(
        "reported: memory that PyTorch or the driver sees. TB/s: memory bandwidth. bf16 to fp8: "
        "dense TFLOP/s."
    )
    return Listing("gpus", {"gpus": tuple(facts)}, (Section("", (table, legend)),))


def model_list(models: Sequence[CatalogueModel]) -> Listing:
    """The models whose architecture is built in, so that they need no network."""
    table = listed(
        models,
        (
            (Column("id"), lambda model: model.id),
            (figures("parameters"), lambda model: format_count(model.parameters)),
            (Column("type", 2), lambda model: str(model.config.get("model_type", DASH))),
            (Column("class", 1), lambda model: model.auto_class),
        ),
        spill=False,
    )
    return Listing("models", {"models": tuple(models)}, (Section("", (table,)),))


def recipe_list(recipes: Sequence[Recipe]) -> Listing:
    """Recipes and how many rungs each has."""
    table = listed(
        recipes,
        (
            (Column("recipe"), lambda recipe: recipe.name),
            (figures("configs"), lambda recipe: str(len(recipe.rungs))),
            (Column("source", 2, detail="from {}"), lambda recipe: recipe.source),
            (Column("description", 1, wraps=True), lambda recipe: recipe.description),
        ),
    )
    return Listing("recipes", {"recipes": tuple(recipes)}, (Section("", (table,)),))


def listed(records: Sequence[T], cells: Cells[T], *, spill: bool = True) -> Block:
    """A row a record, or a note if there are none."""
    return table_of(records, cells, spill=spill) if records else Note("nothing to list")


def _tera(rate: float | None) -> str:
    return format_rate(rate / 1e12 if rate is not None else None)
