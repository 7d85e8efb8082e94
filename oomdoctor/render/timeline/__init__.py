"""Pictures of a timeline: a page to look around in, and a PNG."""
