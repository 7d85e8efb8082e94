"""Weights that are sent to engines in other processes, over NCCL: not here."""
