"""What a call stack says: the phase of training, and the line of the user's own code."""
