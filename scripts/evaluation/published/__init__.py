"""Rows that others published, and how each becomes a case."""
