"""Texts of failures with their truth, and how well `explain` answers them."""
