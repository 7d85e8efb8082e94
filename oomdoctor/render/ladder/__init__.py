"""The tables of rungs that `probe` and `plan` share."""
