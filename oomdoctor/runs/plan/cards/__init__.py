"""Which cards a plan shows, in which order, and what they cost."""
