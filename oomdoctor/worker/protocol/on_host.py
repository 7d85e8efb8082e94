"""How code says that tensors are memory of the host, not of the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

OnHost = Callable[[], AbstractContextManager[None]]
"""A context in which a trace does not count tensors: on a CPU, all are in host memory."""
