"""What to try next: ladders, micro-batch sizes, the largest value, the fewest GPUs."""
