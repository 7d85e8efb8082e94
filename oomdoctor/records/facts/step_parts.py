"""What a training step spends its time on: the rows of `data/step_parts.toml`."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.package_data import rows_of


@dataclass(frozen=True, slots=True)
class StepPartRow:
    """A part of a step: its words, its letter in a bar, its colors on light and dark pages."""

    name: str
    words: str
    sign: str
    light: str
    dark: str


STEP_PARTS = {row.name: row for row in rows_of(StepPartRow, "step_parts.toml")}
