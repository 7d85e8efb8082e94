"""What the processes of a command left, and what was seen of them from outside."""
