"""Earlier runs: which are listed, which are deleted, and what changed between two of them."""
