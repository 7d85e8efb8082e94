"""The options of `probe` and `plan` to the request of a survey."""
