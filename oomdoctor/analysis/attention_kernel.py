"""Which attention kernel ran, from the operators of a step."""

from __future__ import annotations

from collections.abc import Iterable

from oomdoctor.records.facts.attention import KERNELS


def attention_kernel(
    implementation: str, operators: Iterable[str], *, compiled: bool
) -> str | None:
    """The attention kernel that ran; None if unknown.

    `implementation` is transformers' name of it, `operators` are those with attention. Compiled
    code calls kernels that no trace sees.
    """
    names = " ".join(sorted(operators))
    if compiled and not names:
        return None
    for part, kernel in KERNELS:
        if part in names:
            return kernel
    return "sdpa: math" if implementation == "sdpa" else implementation or None
