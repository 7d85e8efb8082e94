"""The rungs of the built-in recipes, to write for other programs and to read back."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.system.recipes.recipes import load_recipe, recipe_names

RUNGS = {
    f"{name}: {rung.label} on {gpus}": replace(rung.config, micro_batch_size=1)
    for name in recipe_names()
    for gpus in ((8, 16) if name.startswith("sharded") else (1,))
    for rung in load_recipe(
        name, sequence_length=2048, effective_batch_size=16, micro_batch_size=None, gpus=gpus
    ).rungs
}
