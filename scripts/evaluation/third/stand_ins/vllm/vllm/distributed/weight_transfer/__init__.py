"""Imported by TRL, and called with engines in other processes only."""
