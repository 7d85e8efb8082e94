"""How many bytes a training needs, in closed form, from the sizes in a config.json.

Good enough to order remedies and to say what a change frees; `probe` measures the real number.
"""

from __future__ import annotations

from oomdoctor.analysis.memory.closed_form import Term
from oomdoctor.explain.memory.activations import activations, logits
from oomdoctor.explain.memory.sizes import Sizes
from oomdoctor.explain.memory.states import gradients, optimizer_states, weights
from oomdoctor.explain.training.assumed import Training


def terms(sizes: Sizes, training: Training) -> tuple[Term, ...]:
    """All parts that can be computed, the certain ones first."""
    sure = (weights, gradients, optimizer_states)
    found = [part(sizes, training) for part in sure]
    for unsure in (activations, logits):
        term = unsure(sizes, training)
        if term is not None:
            found.append(term)
    return tuple(found)
