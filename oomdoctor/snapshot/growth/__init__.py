"""Memory that a program leaves behind again and again: how much, by which line, of what kind.

moments       when levels are compared: at the same point of each step, or of each pass
levels        how much each line of code has alive at these moments
trend         whether a series of levels grows for good
kinds         what it looks like
failures      what a caught out-of-memory error leaves behind
answer        all of it in one answer
"""
