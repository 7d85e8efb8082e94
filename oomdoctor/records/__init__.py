"""Frozen records, the only values that pass between layers. Standard library only, no I/O."""
