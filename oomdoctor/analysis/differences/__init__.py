"""What changed between two reports: which rungs belong together, and which differences matter."""
