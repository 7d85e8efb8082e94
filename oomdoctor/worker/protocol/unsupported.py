"""The one way in which a worker says that a rung cannot run here; this is not a failure."""

from __future__ import annotations


class UnsupportedError(Exception):
    """This machine or these versions cannot run the rung; the message says why and what to do."""
