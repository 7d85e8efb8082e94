"""Memory that a program leaves behind again and again: how much, by which line, of what kind.

levels          how much each line of code has alive at some moments, and whether it grows for good
kinds           what it looks like
growth_answer   all of it in one answer, and what a caught out-of-memory error leaves behind
"""
