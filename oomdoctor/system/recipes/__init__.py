"""Recipes: the built-in ladders, and those in files of the user."""
