"""The categories of memory that a recorded step distinguishes."""

from __future__ import annotations

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
ACTIVATIONS, LOGITS = "activations", "logits"
INPUTS, TEMPORARY = "inputs", "temporary"
CATEGORIES = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, INPUTS, TEMPORARY)
