"""The pages about earlier runs: their list, and what changed between two of them."""
