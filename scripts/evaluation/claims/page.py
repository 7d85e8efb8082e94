"""The rows of the table of claims in the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claims.claim import Claim
from claims.runs import loaded

HEAD = ("articles say", "verdict", "what is true", "why")


def rows(claims: Sequence[Claim], kept: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What articles say, what is true, and why."""
    found = [(claim, claim.check(loaded(kept["answers"][claim.key]))) for claim in claims]
    return [(claim.said, f"**{each.verdict}**", each.truth, each.why) for claim, each in found]


def versions(kept: Mapping[str, Any]) -> str:
    """With which libraries the trainings ran."""
    return ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
