"""The outcomes of a rung, and what can run out, as people see them."""

from __future__ import annotations

from oomdoctor.records.diagnosis import Resource
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

RESOURCE_WORDS: dict[Resource, str] = {
    "gpu": "out of GPU memory",
    "host": "out of host memory",
    "shm": "out of shared memory (/dev/shm)",
    "none": "out of memory",
}
