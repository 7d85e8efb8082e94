"""Rungs with DeepSpeed ZeRO, from a model of its buffers."""
