"""From recordings of a step to its peak at any size, depth and card, without torch."""
