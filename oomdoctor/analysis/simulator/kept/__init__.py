"""Recordings of a rung as bytes to keep, and what was computed from them."""
