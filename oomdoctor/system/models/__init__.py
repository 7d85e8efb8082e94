"""A model by name: from a folder, the cache, the hub or the built-in catalogue."""
