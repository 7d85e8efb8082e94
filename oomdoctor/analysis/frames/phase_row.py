"""A row of the table of frames."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.diagnosis import ReadPhase


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
