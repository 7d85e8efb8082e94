"""The page of `snapshot`, and pictures of a timeline: a page to look around in, and a PNG."""
