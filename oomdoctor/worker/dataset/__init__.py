"""Reads the rows of a data file and counts their tokens."""
