from __future__ import annotations

from oomdoctor.system.recipes.rungs import OPTIMIZERS


def test_every_optimizer_of_transformers_is_known() -> None:
    from transformers.training_args import OptimizerNames

    assert {name.value for name in OptimizerNames} <= set(OPTIMIZERS)
