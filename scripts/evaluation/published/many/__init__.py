"""Rows of several GPUs that others published, and how each becomes a training of several GPUs."""
