"""The installed torch, which decides which kernels a simulated step runs."""

from __future__ import annotations

import torch


def torch_release() -> tuple[int, int]:
    """Major and minor number of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
