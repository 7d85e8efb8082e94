"""Rungs on several GPUs: their engines run on the emulated card where that is possible."""
