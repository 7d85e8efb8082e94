"""Pure functions over records: what fits, how fast, what to try next. No I/O."""
