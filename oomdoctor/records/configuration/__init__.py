"""One rung: its values, a row for each key, its label, and what contradicts itself."""
