"""Turns an out-of-memory error of a training step into a diagnosed one, or skips the batch."""
