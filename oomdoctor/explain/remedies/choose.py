"""Chooses the remedies that help and puts them in order.

The order: first what treats the most certain causes; then what frees enough, then what cannot be
computed, then what frees too little; within each, the smallest loss of speed and quality first. A
change that cannot help is not listed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes.rules import Called, anything
from oomdoctor.explain.reading.programs import Program, around, around_of, libraries, programs
from oomdoctor.explain.remedies.closing import closing
from oomdoctor.explain.remedies.row import Effect, fill
from oomdoctor.explain.remedies.sets import COMPUTED, Choice
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.remedies.text_values import values_of
from oomdoctor.records.report.diagnosis import Remedy
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.programs.trl import COMMANDS
from oomdoctor.stacks.writing.changed_lines import IN_FILES, ON_COMMAND_LINES, settings_text

_ALSO_LOAD = ("transformers", "pytorch")  # libraries that do not only train
_ARGUMENTS = re.compile(r"(TrainingArguments\(.*\))(?:\s+#.*)?")
_BY_SETTINGS = (*IN_FILES, *ON_COMMAND_LINES)
_NAMED = "named_"  # stands for the $ of a name that is filled in later
_ENGINES = {"zero": "deepspeed", "fsdp": "accelerate"}  # whose lines say a sharding


def remedies(
    case: Case, keys: Mapping[str, Called], choices: Sequence[Choice]
) -> tuple[Remedy, ...]:
    """The rows with these keys that can help, in the order in which to try them.

    `keys` come in the order of their causes.
    `choices` are the changes that the closed form found for a training that is beyond the GPU.
    """
    values = values_of(case)
    ranked: list[tuple[tuple[float, ...], Remedy]] = []
    if case.beyond:
        # What is computed is compared as a whole; what is not computed comes after what is enough.
        computed = closing(case, choices, values)
        ranked += [
            ((close, 1, *place, 0), replace(remedy, lines=dict(spoken(case, remedy.lines))))
            for (close, *place), remedy in computed
        ]
        keys = {key: Called(3) for key in keys if key not in COMPUTED and key != "bigger_card"}
    for place, (key, (doubt, in_order)) in enumerate(keys.items()):
        row = TABLE[key]
        made_here = not row.programs or row.programs & case.kinds
        if not made_here or not row.when(case):
            continue
        effect = row.effect(case)
        lines = {name: fill(line, values) for name, line in spoken(case, row.lines)}
        only_lines = row.programs & {"engine", "rl"} and "inference" not in row.programs
        unspoken = row.lines and not lines and only_lines
        if effect.frees_bytes == 0 or unspoken:
            continue
        remedy = Remedy(
            change=fill(row.change, values),
            frees_bytes=effect.frees_bytes,
            basis=effect.basis,
            lines=lines,
            arithmetic=None if effect.arithmetic is None else fill(effect.arithmetic, values),
            note=fill(row.note, values) or None if row.note else None,
            enough=_closes(case, effect),
            changes=effect.sets or row.settings,
            key=key,
        )
        if case.beyond and remedy.enough is not None:
            doubt = 0 if remedy.enough else 2
        if key == "sdpa" and case.scores_line is not None:
            doubt = -1  # the line that failed says so itself
        order = (0, 0, 0) if in_order else (1, _enough(effect, case.needed), row.cost)
        ranked.append(((doubt, *order, place), remedy))
    if not ranked and keys.keys() != set(anything()):  # no change for this cause is one for it
        return remedies(case, dict.fromkeys(anything(), Called(2)), ())
    return tuple(remedy for _, remedy in sorted(ranked, key=lambda pair: pair[0]))


def spoken(case: Case, lines: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The lines that are written for the program, its own first, and for what runs around it."""
    program, seen = case.program, case.around
    lines = _with_arguments(program, lines)
    others = frozenset(key for row in programs() for key in row.speaks) - frozenset(libraries())
    loads = case.phase in ("load", "generate") and case.resource == "gpu"
    without_trainer = "inference" in case.kinds or loads
    speaks = _speaks(case)
    places = {key: place for place, key in reversed([*enumerate(speaks)])}
    for key in sorted(lines, key=lambda key: places.get(key, len(speaks))):
        if key in around():
            # of a container, both ways if none is named: something limits /dev/shm
            right = key in seen or (key in around_of("container") and not seen & lines.keys())
        elif key in libraries() and key not in (*_ALSO_LOAD, program.name, program.library):
            right = program.kind == "training" and not without_trainer
        else:
            trains = program.kind == "training" and key not in others
            right = key in program.speaks or trains
        if right:
            yield key, _with_own_config(case, lines[key]) if key == "trl" else lines[key]


def _with_arguments(program: Program, lines: Mapping[str, str]) -> Mapping[str, str]:
    """The lines, also those of TrainingArguments as settings of a program that takes them."""
    call = _ARGUMENTS.fullmatch(lines.get("transformers", ""))
    takes = program.name in _BY_SETTINGS and BY_NAME[program.name].trainer_arguments
    if not takes or program.name in lines or call is None:
        return lines
    (parsed,) = ast.parse(re.sub(r"\$(\w)", rf"{_NAMED}\1", call[1])).body
    assert isinstance(parsed, ast.Expr) and isinstance(parsed.value, ast.Call)
    settings = {
        (each.arg or "").replace(_NAMED, "$"): _setting(each.value)
        for each in parsed.value.keywords
    }
    return {**lines, program.name: settings_text(program.name, settings)}


def _setting(value: ast.expr) -> str:
    """A value of Python as a file of settings or a command has it."""
    if isinstance(value, ast.Name | ast.BinOp):
        return ast.unparse(value).replace(_NAMED, "$")
    told = ast.literal_eval(value)
    return told if isinstance(told, str) else json.dumps(told)


def _with_own_config(case: Case, line: str) -> str:
    """A line for TRL with the configuration class of the trainer that the text shows."""
    names = {rf"(?i)\b(?:unsloth)?{word}_?trainer": name for word, name in COMMANDS.items()}
    shown = (name for mark, name in names.items() if case.shows(mark) or case.logged(mark))
    own = next(shown, None)
    return line if own is None else line.replace("SFTConfig(", f"{own}(")


def _speaks(case: Case) -> list[str]:
    """The keys of lines for the program, the best first: its engine's before those of torch."""
    speaks, sharding = list(case.program.speaks), case.setup.get("sharding") or ""
    engine = next((key for mark, key in _ENGINES.items() if sharding.startswith(mark)), None)
    if engine is not None and engine not in speaks and "pytorch" in speaks:
        speaks.insert(speaks.index("pytorch"), engine)
    return speaks


def _closes(case: Case, effect: Effect) -> bool | None:
    """Whether the change frees enough; None if the figures do not say."""
    if effect.frees_bytes is None or case.needed is None or effect.at_least:
        return None
    if case.beyond and effect.basis == "arithmetic":
        return None  # it is not part of what the training needs
    return effect.frees_bytes >= case.needed


def _enough(effect: Effect, missing: int | None) -> int:
    if effect.frees_bytes is None or missing is None:
        return 1
    if effect.frees_bytes >= missing:
        return 0
    return 1 if effect.at_least else 2
