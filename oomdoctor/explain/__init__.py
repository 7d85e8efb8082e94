"""From text to diagnosis: reads logs, finds out why memory ran out, and chooses remedies."""
