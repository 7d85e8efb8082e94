"""What the frames of an incident say, and how they are quoted."""

from __future__ import annotations

import re

from oomdoctor.records.diagnosis import Frame, Incident

_FRAMEWORKS = (
    ("trl", r"/trl/|\btrl\."),
    ("transformers", r"transformers/trainer"),
    ("deepspeed", r"/deepspeed/"),
    ("lightning", r"/(?:pytorch_)?lightning/"),
    ("accelerate", r"/accelerate/"),
    ("vllm", r"/vllm/|\bvllm\b"),
    ("transformers", r"/transformers/"),
    ("pytorch", r"/torch/"),
)


def framework_of(incident: Incident) -> str | None:
    """The library whose trainer the traceback runs through, the outermost one first."""
    files = " ".join(frame.file.replace("\\", "/") for frame in incident.frames)
    told = " ".join((files, *incident.lines))
    return next((name for name, words in _FRAMEWORKS if re.search(words, told)), None)


def quote(frame: Frame) -> str:
    """A frame, written as a line of a traceback."""
    number = "" if frame.line is None else f", line {frame.line}"
    code = f": {frame.code}" if frame.code else ""
    path = frame.file.replace("\\", "/")
    return f'File "{path}"{number}, in {frame.function}{code}'
