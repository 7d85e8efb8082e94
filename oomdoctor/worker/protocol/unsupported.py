"""The one way a worker says that a rung cannot be run here, which is no failure."""

from __future__ import annotations


class UnsupportedError(Exception):
    """This machine or these versions cannot run the rung; the text says why and what to do."""
