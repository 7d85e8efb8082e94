"""The attention implementations and kernels: one row each.

`ATTENTIONS` are what a rung can ask for, under transformers' names. `KERNELS` are the operators
that tell which kernel really ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from oomdoctor.package_data import data_of, rows_of
from oomdoctor.records.capability import capability_numbers


@dataclass(frozen=True, slots=True)
class Attention:
    """One value of `attn_implementation`.

    `word` is the short name in labels. `package` is the name on the package index, `module` what
    it is imported as and `install` the line to type. `capability` is the lowest compute capability
    that the package runs on, and the highest if there is one.
    `stores_scores` says whether the scores of all pairs of tokens are kept for the backward pass.
    `stand_in` is the implementation that a simulation builds the model with. `reads_borders` says
    whether it takes the borders of the documents in a row, instead of a mask.
    """

    name: str
    word: str
    package: str | None = None
    module: str | None = None
    install: str | None = None
    capability: tuple[str, ...] = ()
    stores_scores: bool | Literal["unknown"] = False
    sixteen_bit_only: bool = False
    stand_in: Literal["sdpa"] | None = None
    reads_borders: bool = False
    spellings: tuple[str, ...] = ()


_ROWS = rows_of(Attention, "attention.toml")
ATTENTIONS = {row.name: row for row in _ROWS}


def lacks_capability(attention: str, capability: str | None) -> str | None:
    """Why a GPU of this compute capability cannot run an implementation; None if it can.

    If the capability is unknown, it is assumed to be enough.
    """
    needed = ATTENTIONS[attention].capability
    if not needed or capability is None:
        return None
    least, most = needed[0], needed[1] if len(needed) > 1 else capability
    if capability_numbers(least) <= capability_numbers(capability) <= capability_numbers(most):
        return None
    kind = least if len(needed) > 1 else f"{least} or higher"
    return f"{attention} needs compute capability {kind}; this card has {capability}; use sdpa"


# Every name and spelling in configuration files -> its name.
ATTENTION_NAMES = {word: row.name for row in _ROWS for word in (row.name, *row.spellings)}
# Package on the index -> the row that needs it.
OF_PACKAGE = {row.package: row for row in _ROWS if row.package}

# A part of the name of an operator -> the kernel, the most specific part first.
KERNELS: dict[str, str] = data_of("attention.toml")["kernels"]


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
    for part, kernel in KERNELS.items():
        if part in names:
            return kernel
    return "sdpa: math" if implementation == "sdpa" else implementation or None
