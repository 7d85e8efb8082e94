"""Parses settings of a training with the library that they are for, in the user's interpreter."""
