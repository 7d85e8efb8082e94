"""All claims, and where what was run for them is kept."""

from __future__ import annotations

from pathlib import Path

from claims.several import SEVERAL
from claims.shares import SHARES
from claims.single import SINGLE

CLAIMS = (*SINGLE, *SHARES, *SEVERAL)
KEPT = Path(__file__).parents[3] / "tests" / "data" / "claims.json"
