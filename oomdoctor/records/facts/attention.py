"""The attention implementations and kernels: one row each.

`ATTENTIONS` are what a rung can ask for, under transformers' names. `KERNELS` are the operators
that tell which kernel really ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Attention:
    """One value of `attn_implementation`.

    `word` is the short name in labels. `package` is the name on the package index, `module` what
    it is imported as and `install` the line to type. `capability` is the range of compute
    capabilities that the package runs on, without an upper end where the second is None.
    `stores_scores` says whether the scores of all pairs of tokens are kept for the backward pass.
    `stand_in` is the implementation that a simulation builds the model with. `reads_borders` says
    whether it takes the borders of the documents in a row, instead of a mask.
    """

    name: str
    word: str
    package: str | None = None
    module: str | None = None
    install: str | None = None
    capability: tuple[str, str | None] | None = None
    stores_scores: bool | None = False
    sixteen_bit_only: bool = False
    stand_in: Literal["sdpa"] | None = None
    reads_borders: bool = False
    spellings: tuple[str, ...] = ()


_ROWS = (
    Attention("sdpa", "sdpa"),
    Attention("eager", "eager", stores_scores=True, spellings=("disabled",)),
    # The packages' own README (Dao-AILab/flash-attention): Ampere or newer; version 3 is for
    # Hopper only. Neither installs by its plain name: one must not be built in isolation from
    # torch, the other is not on the package index.
    Attention(
        "flash_attention_2",
        "flash2",
        package="flash-attn",
        module="flash_attn",
        install="pip install flash-attn --no-build-isolation",
        capability=("8.0", None),
        sixteen_bit_only=True,
        stand_in="sdpa",
        reads_borders=True,
        spellings=("fa2",),
    ),
    Attention(
        "flash_attention_3",
        "flash3",
        package="flash-attn-3",
        module="flash_attn_interface",
        install="build the hopper folder of github.com/Dao-AILab/flash-attention",
        capability=("9.0", "9.0"),
        sixteen_bit_only=True,
        stand_in="sdpa",
        reads_borders=True,
        spellings=("fa3",),
    ),
    # It stores no scores, but repeats keys and values for some numbers of heads.
    Attention("flex_attention", "flex", stores_scores=None),
)

ATTENTIONS = {row.name: row for row in _ROWS}


def lacks_capability(attention: str, capability: str | None) -> str | None:
    """Why a GPU of this compute capability cannot run an implementation; None if it can.

    If the capability is unknown, it is assumed to be enough.
    """
    needed = ATTENTIONS[attention].capability
    if needed is None or capability is None:
        return None
    least, most = needed
    if _numbers(least) <= _numbers(capability) <= _numbers(most or capability):
        return None
    kind = least if least == most else f"{least} or higher"
    return f"{attention} needs compute capability {kind}; this card has {capability}; use sdpa"


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


# Every name and spelling in configuration files -> its name.
ATTENTION_NAMES = {word: row.name for row in _ROWS for word in (row.name, *row.spellings)}
# Package on the index -> the row that needs it.
OF_PACKAGE = {row.package: row for row in _ROWS if row.package}

# A part of the name of an operator -> the kernel, the most specific part first.
KERNELS = (
    ("_scaled_dot_product_flash_attention_for_cpu", "sdpa: flash (CPU)"),
    ("_scaled_dot_product_flash_attention", "sdpa: flash"),
    ("_scaled_dot_product_efficient_attention", "sdpa: memory-efficient"),
    ("_scaled_dot_product_cudnn_attention", "sdpa: cuDNN"),
    ("_scaled_dot_product_fused_attention_overrideable", "sdpa: fused"),
    ("_flash_attention_forward", "flash_attention_2"),
    ("flash_attn_3", "flash_attention_3"),
    ("flash_attn", "flash_attention_2"),
    ("flex_attention", "flex_attention"),
)


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
