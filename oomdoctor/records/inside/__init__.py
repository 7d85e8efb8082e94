"""What is seen inside a training: its runs, its live log, and snapshots of its memory."""
