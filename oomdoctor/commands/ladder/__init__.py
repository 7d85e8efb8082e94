"""What `probe` and `plan` share: the model, its data, and the report of a ladder of rungs."""
