"""A log of any size to clean lines, the most recent ones kept, and the tracebacks in them."""
