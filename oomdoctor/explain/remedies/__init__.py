"""What helps: each change with what it frees, in the order of its cost."""
