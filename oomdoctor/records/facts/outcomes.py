"""The outcomes of a rung, as people see them."""

from __future__ import annotations

from oomdoctor.records.result import Outcome

OUTCOME_WORDS: dict[Outcome, str] = {
    "fits": "fits",
    "oom": "out of memory",
    "host_oom": "out of host memory",
    "unsupported": "not supported",
    "failed": "failed",
    "crashed": "crashed",
    "timed_out": "timed out",
    "skipped": "skipped",
}
