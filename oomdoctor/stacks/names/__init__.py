"""The names of settings, one module a program. A table is read in both directions."""
