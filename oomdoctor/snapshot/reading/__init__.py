"""A snapshot's file: a pickle that may come from anybody, read as plain data and nothing else."""
