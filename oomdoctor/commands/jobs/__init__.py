"""Runs jobs in worker processes, or answers them from what is remembered."""
