"""What is known of the training: from the log, from options, or assumed."""
