"""The optimizers: one row each, with everything this package knows about them.

Names are those of transformers' `OptimizerNames`. What a row does not know is None, and its readers
then assume nothing: a lower bound counts the weights alone, and no rung is skipped because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Library = Literal[
    "torch",
    "transformers",
    "bitsandbytes",
    "torchao",
    "apex",
    "torch_xla",
    "torch_npu",
    "torchdistx",
    "galore_torch",
    "apollo_torch",
    "lomo_optim",
    "grokadamw",
    "schedulefree",
    "torch-optimi",
]
# How a step runs on CUDA: one kernel over all parameters, operators over lists of parameters, or
# parameter by parameter.
Kernel = Literal["fused", "foreach", "per-parameter"]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer.

    `moments` is the number of states for each parameter that follow its shape, 0 where there are
    none or only small ones (Adafactor's row and column sums). `moment_bytes` is the size of one
    entry; None means the size of the weight. A row with `moments` updates after the backward pass,
    when all gradients exist; layer-wise optimizers free gradients early and leave it None.
    `paged` states may leave the device. `gradient_copies` is how many temporaries of the size of
    all gradients a step makes at most. `at_least` names optimizers that need at least as much
    memory for each tensor. `versions` is a pip requirement without which the name does not exist.
    `layerwise` ones step in the backward pass, parameter by parameter.
    `recipe` is False for names that only appear in logs and configuration files. `spellings` are
    other names for it there.
    """

    name: str
    library: Library
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


_ROWS = (
    # torch's own. `foreach`, torch's default on CUDA, makes temporaries that `fused` does not.
    Optimizer(
        "adamw_torch_fused", "torch", 2, kernel="fused", at_least=("adamw_torch",),
        steps_on_host=True,
    ),
    Optimizer(
        "adamw_torch", "torch", 2, kernel="foreach", word="adamw-foreach", steps_on_host=True,
        spellings=("adam", "adamw"),  # DeepSpeed
    ),
    # bitsandbytes keeps more than this for embeddings and small tensors.
    Optimizer(
        "adamw_bnb_8bit", "bitsandbytes", 2, 1, kernel="per-parameter", gradient_copies=0,
        word="adamw8bit",
        spellings=("adamw8bit", "adam8bit"),  # DeepSpeed
    ),
    Optimizer(
        "adamw_8bit", "bitsandbytes", 2, 1, kernel="per-parameter", gradient_copies=0,
        word="adamw8bit",
        alias_of="adamw_bnb_8bit",
    ),
    Optimizer(
        "paged_adamw_8bit", "bitsandbytes", 2, 1, kernel="per-parameter", paged=True,
        gradient_copies=0, word="paged8bit",
        at_least=("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit"),
    ),
    Optimizer(
        "paged_adamw_32bit", "bitsandbytes", 2, 4, kernel="per-parameter", paged=True,
        gradient_copies=0,
        word="paged32bit", spellings=("paged_adamw",),
    ),
    # Adafactor keeps row and column sums of the second moment, and no first moment by default.
    Optimizer("adafactor", "transformers", 0, kernel="per-parameter", steps_on_host=True),
    Optimizer("sgd", "torch", 0, kernel="foreach", gradient_copies=1, steps_on_host=True),
    Optimizer(
        "lion_8bit", "bitsandbytes", 1, 1, kernel="per-parameter", gradient_copies=0,
        word="lion8bit",
        at_least=("adamw_bnb_8bit", "adamw_8bit"),
    ),
    Optimizer("lion_32bit", "bitsandbytes", 1, 4, kernel="per-parameter", gradient_copies=0),
    Optimizer(
        "paged_lion_8bit", "bitsandbytes", 1, 1, kernel="per-parameter", paged=True,
        gradient_copies=0,
        at_least=("lion_8bit",),
    ),
    Optimizer(
        "paged_lion_32bit", "bitsandbytes", 1, 4, kernel="per-parameter", paged=True,
        gradient_copies=0,
    ),
    # Known by name only: the Trainer builds them where their library is installed.
    Optimizer("adagrad", "torch", 1, kernel="foreach", steps_on_host=True),
    Optimizer("rmsprop", "torch", 1, kernel="foreach", steps_on_host=True),
    Optimizer("rmsprop_bnb", "bitsandbytes", 1, 4, kernel="per-parameter"),
    Optimizer("rmsprop_bnb_8bit", "bitsandbytes", 1, 1, kernel="per-parameter"),
    Optimizer("rmsprop_bnb_32bit", "bitsandbytes", 1, 4, kernel="per-parameter"),
    Optimizer("ademamix", "bitsandbytes", 3, 4, kernel="per-parameter"),
    Optimizer("ademamix_8bit", "bitsandbytes", 3, 1, kernel="per-parameter"),
    Optimizer("paged_ademamix_8bit", "bitsandbytes", 3, 1, kernel="per-parameter", paged=True),
    Optimizer("paged_ademamix_32bit", "bitsandbytes", 3, 4, kernel="per-parameter", paged=True),
    # torchao keeps states of fewer than 4,096 entries in the weight's type, and its compiled step
    # makes two fp32 copies of one parameter at a time.
    Optimizer(
        "adamw_torch_8bit", "torchao", 2, 1, kernel="per-parameter", word="adamw8bit-ao",
        versions="torchao>=0.4.0",
    ),
    Optimizer(
        "adamw_torch_4bit", "torchao", 2, 0.5, kernel="per-parameter", word="adamw4bit-ao",
        versions="torchao>=0.4.0",
    ),
    Optimizer("adamw_torch_xla", "torch_xla"),
    Optimizer("adamw_torch_npu_fused", "torch_npu"),
    Optimizer("adamw_apex_fused", "apex", 2, versions="transformers<5"),
    Optimizer("adamw_anyprecision", "torchdistx"),
    Optimizer("galore_adamw", "galore_torch"),
    Optimizer("galore_adamw_8bit", "galore_torch"),
    Optimizer("galore_adafactor", "galore_torch"),
    Optimizer("galore_adamw_layerwise", "galore_torch", layerwise=True),
    Optimizer("galore_adamw_8bit_layerwise", "galore_torch", layerwise=True),
    Optimizer("galore_adafactor_layerwise", "galore_torch", layerwise=True),
    Optimizer("lomo", "lomo_optim"),
    Optimizer("adalomo", "lomo_optim"),
    Optimizer("grokadamw", "grokadamw"),
    Optimizer("schedule_free_radam", "schedulefree", versions="schedulefree>=1.4.0"),
    Optimizer("schedule_free_adamw", "schedulefree"),
    Optimizer("schedule_free_sgd", "schedulefree"),
    Optimizer("apollo_adamw", "apollo_torch"),
    Optimizer("apollo_adamw_layerwise", "apollo_torch", layerwise=True),
    Optimizer("stable_adamw", "torch-optimi", versions="transformers>4.51"),
    # transformers' own AdamW, which it has removed: only old logs name it.
    Optimizer("adamw_hf", "transformers", 2, recipe=False),
)  # fmt: skip

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
