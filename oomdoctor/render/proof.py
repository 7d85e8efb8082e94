"""What a run of a changed training shows, in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from oomdoctor.records.report.user_training import AppliedRemedy
from oomdoctor.units import format_bytes

_VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "deepspeed")


def proof_lines(applied: AppliedRemedy) -> Iterator[str]:
    """Whether the change is proven, by which command, and with which versions."""
    proof = applied.proof
    if proof is None:
        return
    before, after = format_bytes(proof.before_bytes), format_bytes(proof.peak_bytes)
    if proof.fits is None:
        yield f"not proven: {proof.reason}"
    elif proof.fits:
        yield f"proven: with it the training fits on {proof.gpu}: {after} instead of {before}"
    else:
        yield f"not enough: with it the training needs {after} instead of {before} on {proof.gpu}"
    versions = [f"{name} {proof.versions[name]}" for name in _VERSIONS if name in proof.versions]
    yield f"emulated: {shlex.join(proof.command)}"
    if versions:
        yield f"versions: {', '.join(versions)}"
