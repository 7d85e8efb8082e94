"""The page of `snapshot`."""
