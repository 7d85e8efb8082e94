"""Finds the phase of training in the frames of a traceback, and the user's own line.

The phase comes from the innermost frame that `data/frames.toml` knows. But a forward pass or a loss
belongs to what runs it: a backward pass that recomputes it, an evaluation, a generation or startup.
A backward pass or an optimizer step is what it is, whatever the functions around it are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import dropwhile

from oomdoctor.analysis.own_code import is_own, joined
from oomdoctor.package_data import data_of
from oomdoctor.records.report.diagnosis import Frame, ReadPhase

_PASSES = ("forward", "loss")
_MODEL_CALL = re.compile(r"\b(?:model|net|network|encoder|module)\(")
_IN_A_PASS = re.compile(r"(?:[\w.]+[._])?forward|_(?:wrapped_)?call_impl|_?training_step")
# As outer phases, these count only if the function matches: a constructor around a pass does not
# say what the pass is for, a model's file alone is not a pass, and TRL generates while it prepares
# data.
_TELLING: dict[str, re.Pattern[str]] = {
    "init": re.compile(r"(?!(?:\w+\.)?__init__$).*"),
    "forward": re.compile(
        r"(?:(?<![\w.])[\w.]+[._])?_?forward(?:_\w+)?|(?:\w+\.)?_(?:wrapped_)?call_impl|_?training_step"
    ),
    "data": re.compile(r"fetch|_next_data|__getitems?__|collate\w*"),
}
# The last matrix product computes the logits, which belong to the loss.
_LOGITS = re.compile(r"modeling_\w+\.py .*\bself\.(?:lm_head|embed_out|output_projection)\(")
# A signal handler raises it at a random line of the main process, so its frames mean nothing.
_INTERRUPTED = "torch/utils/data/_utils/signal_handling.py"
_LOADER = "torch/utils/data/dataloader.py"
_RECOMPUTING = re.compile(r"torch/utils/checkpoint\.py|deepspeed/.*checkpointing\.py|unsloth_zoo/")


# Compiled on first use: compiling the whole table would double the startup time.
_compiled = cache(re.compile)
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Row:
    """A phase, and what the file, the function and the quoted source must look like.

    `weak`: the name alone does not tell, so it counts only outside of any forward pass.
    """

    phase: ReadPhase
    file: str = ""
    function: str = ""
    code: str = ""
    weak: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The patterns of `data/frames.toml`.

    `moments` are words of single lines before a message without frames; `near` are words around it;
    `told` are those of a person who tells of the failure.
    """

    rows: tuple[Row, ...]
    moments: tuple[tuple[ReadPhase, str], ...]
    near: tuple[tuple[ReadPhase, str], ...]
    told: tuple[tuple[ReadPhase, str], ...]
    names: dict[str, str]
    around: dict[str, list[ReadPhase]]


@cache
def table() -> Table:
    """The patterns, read once."""
    data = data_of("frames.toml")
    names = {name: joined(pattern) for name, pattern in data["names"].items()}
    rows = (
        Row(**row | {key: names.get(row[key]) or joined(row[key]) for key in _LOOKS & row.keys()})
        for row in data["rows"]
    )
    moments, near, told = (
        tuple((row["phase"], joined(row["words"])) for row in data[name])
        for name in ("moments", "near", "told")
    )
    return Table(tuple(rows), moments, near, told, names, data["around"])


_LOOKS = {"file", "function", "code"}


def _named(name: str) -> re.Pattern[str]:
    return _compiled(table().names[name])


def phase_of(frames: tuple[Frame, ...]) -> tuple[ReadPhase, Frame | None]:
    """The phase according to the frames, and the innermost line of the user's own code."""
    where = next((f for f in reversed(frames) if is_own(f.file)), None)
    phase: ReadPhase = "unknown"
    interrupted = bool(frames) and frames[-1].file.endswith(_INTERRUPTED)
    passes = (i for i, f in enumerate(frames) if _IN_A_PASS.fullmatch(f.function))
    outermost_pass = next(passes, len(frames))
    trained = False  # whether a training step is around what was found so far
    if interrupted and any(frame.file.endswith(_LOADER) for frame in frames):
        return "data", where  # the main process was waiting for a batch
    for index in () if interrupted else range(len(frames) - 1, -1, -1):
        frame = frames[index]
        weak = index <= outermost_pass
        if phase == "unknown":
            phase = meaning(frame, weak=weak)
        elif phase == "forward" and _runs_a_loss(frame):
            phase = "loss"
        else:
            around = meaning(frame, quoted=False, weak=weak)
            telling = _TELLING.get(around)
            inside = around in table().around.get(phase, ())
            outside = trained and around in ("eval", "generate")
            if inside and not outside and (not telling or telling.fullmatch(frame.function)):
                phase = around
        if phase in _PASSES and _named("training").fullmatch(frame.function):
            trained = True
    return phase, where


def _runs_a_loss(frame: Frame) -> bool:
    """Whether a frame around a pass computes the logits or runs the module of a loss."""
    code = frame.code or ""
    if _LOGITS.search(f"{frame.file} {code}") or _named("loss_call").search(code):
        return True
    runs = frame.function in ("forward", "__call__")
    inside = runs and _named("loss_file").search(frame.file) is not None
    return inside and bool(code) and _MODEL_CALL.search(code) is None


def recomputes(frames: tuple[Frame, ...]) -> bool:
    """Whether a backward pass was recomputing a checkpointed part of the model."""
    inside = dropwhile(lambda frame: meaning(frame) != "backward", frames)
    return any(_RECOMPUTING.search(frame.file) for frame in inside)


def moment_of(lines: Iterable[str], context: str) -> ReadPhase:
    """The phase according to what a program printed before a failure without frames.

    `lines` come nearest first, and the first that tells a moment decides. If none does, words in
    the `context`, the text around the failure, may.
    """
    for line in lines:
        for phase, words in table().moments:
            if _compiled(words).search(line):
                return phase if phase != "unknown" else _told_by(context)
    return _told_by(context)


def _told_by(context: str) -> ReadPhase:
    return _first(table().near, context)


def told_phase(sentence: str) -> ReadPhase:
    """The phase according to the sentence in which a person tells of a failure."""
    return _first(table().told, sentence)


def _first(rows: tuple[tuple[ReadPhase, str], ...], text: str) -> ReadPhase:
    return next((phase for phase, words in rows if _compiled(words).search(text)), "unknown")


@lru_cache(maxsize=1024)
def meaning(frame: Frame, quoted: bool = True, weak: bool = True) -> ReadPhase:
    """The phase of a frame.

    Without `quoted`, rows that only check the quoted line are skipped; without `weak`, weak rows.
    """
    # IPython writes the class before the method.
    names = {frame.function[:_LONGEST_NAME], frame.function.rpartition(".")[2][:_LONGEST_NAME]}
    for row in table().rows:
        if (row.weak and not weak) or not (quoted or row.file or row.function):
            continue
        if row.file and not _compiled(row.file).search(frame.file):
            continue
        if row.function and not any(_compiled(row.function).fullmatch(name) for name in names):
            continue
        if row.code and (frame.code is None or not _compiled(row.code).search(frame.code)):
            continue
        return row.phase
    return "unknown"
