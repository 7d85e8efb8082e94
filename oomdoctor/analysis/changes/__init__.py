"""What makes a rung fit or faster: one table of changes, and a search over sets of them."""
