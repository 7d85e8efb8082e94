"""The case that is kept if memory ran out: its files, their evidence, and no secrets."""
