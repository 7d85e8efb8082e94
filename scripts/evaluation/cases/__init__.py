"""Measured runs as cases, and what the simulator predicts for them."""
