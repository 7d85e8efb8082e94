"""Records allocations of a step: each block with its category, its phase and its line."""
