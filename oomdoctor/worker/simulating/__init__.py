"""Runs a step on fake tensors: a tape of its blocks, and the costs of its operators."""
