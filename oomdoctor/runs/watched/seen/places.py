"""The line of a peak, and its phase, from the Python stack that torch recorded.

A script that records its own history may ask for C++ frames too; they are passed over.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from oomdoctor.analysis.frames import phase_of
from oomdoctor.records.diagnosis import Frame, ReadPhase
from oomdoctor.records.inside.run import Place

_OURS = "oomdoctor/monitor/"
_PHASES: dict[str, ReadPhase] = {
    "load": "load",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "eval": "eval",
}
# A function of a library that says more than the hooks do: a part of its file, its name, the phase.
_FUNCTIONS: tuple[tuple[str, str, ReadPhase], ...] = (
    ("clip_grad", "", "clip"),
    ("", "clip_grad_norm_", "clip"),
    ("", "from_pretrained", "load"),
    ("transformers/generation", "generate", "generate"),
    ("", "evaluation_loop", "eval"),
    ("", "state_dict", "save"),
)
_SHOWN_FRAMES = 40
_ALL_FRAMES = 60  # what the record keeps of a stack


def user_line(
    peak: dict[str, Any], libraries: list[str], script: str | None = None
) -> Place | None:
    """The innermost line of the user's own code; in the backward pass, what called it.

    The script that was started is the user's, also if a package installed it.
    """
    for frames in (peak["frames"], peak["backward_frames"] if _in_backward(peak) else []):
        for frame in frames:
            if frame["filename"] == script or not _is_library(frame["filename"], libraries):
                return _place(frame)
    return None


def library_line(peak: dict[str, Any], libraries: list[str]) -> Place | None:
    """The innermost line of all, if it is a library's."""
    python = [frame for frame in peak["frames"] if frame["filename"].endswith(".py")]
    frames = [frame for frame in python if not _is_ours(frame["filename"])]
    if not frames or not _is_library(frames[0]["filename"], libraries):
        return None
    return _place(frames[0])


def phase_of_peak(peak: dict[str, Any]) -> ReadPhase:
    """The phase by the stack, where a function says it, else by the hooks.

    Without hooks, the whole stack says it.
    """
    for frame in peak["frames"][:_SHOWN_FRAMES]:
        for file, function, phase in _FUNCTIONS:
            if file in frame["filename"] and function in ("", frame["name"]):
                return phase
    if _in_backward(peak):
        return "backward"
    return _PHASES.get(peak["phase"]) or _by_stack(peak["frames"])


def _by_stack(frames: list[dict[str, Any]]) -> ReadPhase:
    outermost_first = tuple(
        Frame(one["filename"], one["line"], one["name"], None)
        for one in reversed(frames)
        if one["filename"].endswith(".py") and not _is_ours(one["filename"])
    )
    return phase_of(outermost_first)[0]


def _in_backward(peak: dict[str, Any]) -> bool:
    # The thread of the backward pass has no Python stack, except where it computes again or runs
    # a function that a library wrote in Python: then the script is not below.
    frames = peak["frames"]
    apart = len(frames) < _ALL_FRAMES and all(frame["name"] != "<module>" for frame in frames)
    return peak["phase"] == "backward" or (peak["phase"] == "loss" and apart)


def _is_library(file: str, libraries: list[str]) -> bool:
    if not file.endswith(".py") or _is_ours(file):  # such as <frozen runpy>
        return True
    path = PurePath(file)
    return any(path.is_relative_to(folder) for folder in libraries)


def _is_ours(file: str) -> bool:
    return _OURS in file


def shown_file(file: str) -> str:
    """A file below the working directory, which is that of the command, by its relative path."""
    path, here = PurePath(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _place(frame: dict[str, Any]) -> Place:
    return Place(shown_file(frame["filename"]), int(frame["line"] or 0), frame["name"])
