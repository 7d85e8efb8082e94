"""The names of charts on the command line; the first is drawn unless another is asked for."""

from __future__ import annotations

CHARTS = ("frontier", "memory", "step", "predicted", "cards", "sweep")
