"""Where the time of a step goes: a table of its phases and parts, and a bar of letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from oomdoctor.records.facts.phases import PHASES
from oomdoctor.records.facts.step_parts import STEP_PARTS
from oomdoctor.records.job.step_time import StepTime
from oomdoctor.render.blocks import Cells, Column, Grid, figures, table_of
from oomdoctor.render.charts.parts import bar
from oomdoctor.render.words import counted
from oomdoctor.units import DASH, format_percent, format_seconds

_CELLS = 60
_OTHERS = {"micro_step": "waiting for links"}  # what is in no single phase


@dataclass(frozen=True, slots=True)
class StepRow:
    """A phase of a step, or the whole one: the seconds of its parts, and its share of the step."""

    name: str
    seconds: float
    share: float
    parts: Mapping[str, float]


def step_rows(step: StepTime) -> list[StepRow]:
    """The phases of a step that take time, and the whole step as the last row."""
    rows = []
    for phase in (*PHASES, *_OTHERS):
        parts = {str(of.part): of.by_phase[phase] for of in step.parts if phase in of.by_phase}
        if parts:
            name = PHASES[phase].noun if phase in PHASES else _OTHERS[phase]
            seconds = sum(parts.values())
            rows.append(StepRow(name, seconds, seconds / step.seconds, parts))
    whole: Mapping[str, float] = {str(of.part): of.seconds for of in step.parts}
    shares = {name: seconds / step.seconds for name, seconds in whole.items()}
    return [*rows, StepRow("step", step.seconds, 1.0, whole), StepRow("share", 0.0, 1.0, shares)]


def step_table(step: StepTime) -> Grid:
    """Seconds by phase and part; the last rows have the sums and their shares."""
    cells: Cells[StepRow] = (
        (Column("phase"), lambda row: row.name),
        (figures("time"), lambda row: format_seconds(row.seconds) if row.seconds else ""),
        (figures("of step", 1), lambda row: format_percent(row.share)),
        *(
            (figures(STEP_PARTS[of.part].words, 2), partial(_of_part, part=of.part))
            for of in step.parts
        ),
    )
    return table_of(step_rows(step), cells)


def _of_part(row: StepRow, part: str) -> str:
    value = row.parts.get(part)
    if row.name == "share":
        return format_percent(value, 1)
    return DASH if value is None else format_seconds(value)


def step_bar(step: StepTime) -> str:
    """`[pppppaammmh]`: the whole step, a letter for each part."""
    parts = [(of.part, of.seconds) for of in step.parts]
    return bar(parts, sum(seconds for _, seconds in parts), _CELLS)


def step_legend(step: StepTime) -> str:
    """What the letters of the bar mean, and how much the host launches."""
    rows = [STEP_PARTS[of.part] for of in step.parts]
    return (
        f"{', '.join(f'{row.sign} {row.words}' for row in rows)}; "
        f"{counted(step.micro_steps, 'micro-step')} and {step.launches:,} operators per step."
    )
