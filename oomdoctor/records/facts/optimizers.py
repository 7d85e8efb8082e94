"""The optimizers: one row each in `data/optimizers.toml`, with everything that is known about them.

Names are those of transformers' `OptimizerNames`. What a row does not know is None, and its readers
then assume nothing: a lower bound counts the weights alone, and no rung is skipped because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.package_data import rows_of

# How a step runs on CUDA: one kernel over all parameters, operators over lists of parameters, or
# parameter by parameter.
Kernel = Literal["fused", "foreach", "per-parameter"]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer.

    `moments` is the number of states for each parameter that follow its shape, 0 where there are
    none or only small ones (Adafactor's row and column sums). `moment_bytes` is the size of one
    entry; None means the size of the weight. A row with `moments` updates after the backward pass,
    when all gradients exist; layer-wise optimizers free gradients early and leave it None. `paged`
    states may leave the device. `gradient_copies` is how many temporaries of the size of all
    gradients a step makes at most. `at_least` names optimizers that need at least as much memory
    for each tensor. `versions` is a pip requirement without which the name does not exist.
    `layerwise` ones step in the backward pass, parameter by parameter. `recipe` is False for names
    that only appear in logs and configuration files. `spellings` are other names for it there.
    """

    name: str
    library: str
    moments: int | None = None
    moment_bytes: float | None = None
    paged: bool = False
    gradient_copies: int | None = None
    kernel: Kernel | None = None
    word: str | None = None
    alias_of: str | None = None
    at_least: tuple[str, ...] = ()
    steps_on_host: bool = False
    layerwise: bool = False
    versions: str | None = None
    recipe: bool = True
    spellings: tuple[str, ...] = ()

    @property
    def eight_bit(self) -> bool:
        """Whether the states of large linear layers take one byte an entry."""
        return self.moment_bytes == 1

    @property
    def low_rank(self) -> bool:
        """Whether it keeps its states for a projection of the gradients."""
        return self.library in ("galore_torch", "apollo_torch")

    @property
    def lean(self) -> bool:
        """Whether 8-bit AdamW would not make its states smaller (paged states aside)."""
        small = self.moment_bytes is not None and self.moment_bytes <= 1
        return not self.paged and (self.moments == 0 or small)

    def device_state_bytes(self, weight_bytes: int) -> int | None:
        """Bytes of state for each parameter that are on the device at least; None if not known."""
        if self.moments is None:
            return None
        if self.paged:
            return 0
        each = weight_bytes if self.moment_bytes is None else self.moment_bytes
        return int(self.moments * each)


_ROWS = rows_of(Optimizer, "optimizers.toml")
OPTIMIZERS = {row.name: row for row in _ROWS}
DEFAULT_OPTIMIZER = "adamw_torch_fused"
# What a recipe may name, in the order in which it is offered.
RECIPE_NAMES = tuple(row.name for row in _ROWS if row.recipe)
_SPELLINGS = {word: row.name for row in _ROWS for word in (row.name, *row.spellings)}


def optimizer_named(name: str) -> Optimizer | None:
    """The row of a name or of one of its spellings; None for an optimizer that has no row."""
    return OPTIMIZERS.get(_SPELLINGS.get(name, ""))


def compiles_its_step(name: str) -> bool:
    """Whether its step runs through torch.compile."""
    row = optimizer_named(name)
    return row is not None and row.library == "torchao"


def is_paged(name: str) -> bool:
    """Whether its states may leave the device; False for an optimizer without a row."""
    row = optimizer_named(name)
    return row is not None and row.paged


def canonical(name: str) -> str:
    """The one name of an optimizer that transformers knows under two."""
    row = OPTIMIZERS.get(name)
    return row.alias_of if row is not None and row.alias_of is not None else name
