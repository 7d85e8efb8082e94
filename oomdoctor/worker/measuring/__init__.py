"""Runs a step on a device: its peaks and times."""
