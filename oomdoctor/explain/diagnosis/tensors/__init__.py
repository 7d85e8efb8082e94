"""Which tensor did not fit, by its size and by the lines of the traceback."""
