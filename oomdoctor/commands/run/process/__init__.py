"""Runs the command: its process group, its signals, its terminal and its output."""
