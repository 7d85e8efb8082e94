"""`probe`: measure rungs in turn, learn from each, and go on."""
