"""What is known of optimizers, data types, attention and the like: one table each, one row each."""
