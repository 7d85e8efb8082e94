"""Runs a command: its process group, signals, terminal and output."""
