"""What `explain` says of a log, of a simulation of it, and of the user's own file."""
