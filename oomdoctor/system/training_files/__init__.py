"""Reads the user's training files for `--from`: values with the lines that they are on."""
