"""The Trainer of a rung: transformers' or one of TRL's, each with its own step."""
