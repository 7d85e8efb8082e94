"""Builds a model as a rung says and makes its training step: the one home of that step."""
