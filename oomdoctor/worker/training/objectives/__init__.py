"""What a step trains for, and how sequences share rows."""
