"""This machine: its GPUs by the driver, its memory, its limits, its libraries."""
