"""Several ranks: they stop together, or one runs and answers for all."""
