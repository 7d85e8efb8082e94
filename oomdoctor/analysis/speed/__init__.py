"""How long a step takes: roofline, traffic, links between GPUs."""
