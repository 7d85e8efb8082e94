"""What a rung adds to a training: one module a technique."""
