"""What programs take of vLLM's helpers."""

from __future__ import annotations

import uuid


def random_uuid() -> str:
    return uuid.uuid4().hex
