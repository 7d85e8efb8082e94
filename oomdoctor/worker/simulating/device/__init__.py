"""A fake device: tensors without data, and what operators on them return."""
