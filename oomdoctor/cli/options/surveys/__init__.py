"""The options of `probe` and `plan`: what they share, and what each has alone."""
