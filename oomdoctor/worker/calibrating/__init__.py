"""Measure single operators of a device and steps of small models, for `probe --calibrate`."""
