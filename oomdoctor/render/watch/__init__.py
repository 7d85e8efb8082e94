"""The page of `watch`."""
