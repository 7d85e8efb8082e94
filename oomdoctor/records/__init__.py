"""Frozen records: the only thing that crosses floors. Standard library only, no I/O."""
