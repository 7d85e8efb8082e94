"""stdout, stderr and their moving line, progress, and what Ctrl-C does."""
