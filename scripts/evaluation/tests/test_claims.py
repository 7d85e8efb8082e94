"""What articles say, against what was run: the kept figures, and verdicts that can change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from check_claims import differences
from claims.claim import Claim
from claims.every import CLAIMS, KEPT
from claims.runs import Answers, Need, loaded

STORED: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
BY_KEY = {claim.key: claim for claim in CLAIMS}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_every_training_was_run_on_the_emulated_gpu(claim: Claim) -> None:
    found = loaded(STORED["answers"][claim.key])
    names = {training.name for training in claim.trainings}
    assert names == set(found.emulated)
    assert set(found.simulated) in (names, set())  # several GPUs are only emulated


def test_simulated_peaks_are_those_of_the_emulated_gpu() -> None:
    assert differences(STORED) == {}


def scaled(key: str, factor: float) -> Answers:
    """The answers of a claim if each size were larger by a factor."""
    found = loaded(STORED["answers"][key])

    def times(need: Need) -> Need:
        assert need.device_bytes is not None
        return replace(need, device_bytes=round(need.device_bytes * factor))

    return Answers({}, {name: times(need) for name, need in found.emulated.items()})


def test_the_share_of_the_states_decides_about_8_bit_adamw() -> None:
    found = loaded(STORED["answers"]["states"])
    check = BY_KEY["states"].check
    assert check(found).verdict == "partly true"  # of 32-bit states only
    narrow = found.emulated["states-bf16"]
    wide = found.emulated["states-fp32"]
    same = replace(narrow, optimizer_bytes=wide.optimizer_bytes)
    assert check(Answers({}, {**found.emulated, "states-bf16": same})).verdict == "true"
    none = dict.fromkeys(found.emulated, narrow)
    assert check(Answers({}, none)).verdict == "false"


@pytest.mark.parametrize(
    ("key", "factor", "verdict"),
    [
        ("full-24", 0.5, "true"),
        ("full-24", 1.0, "false"),
        ("qlora-6", 0.5, "true"),
        ("qlora-6", 3.0, "false"),
        ("lora-14", 3.0, "false"),
        ("gpt2-large", 3.0, "false"),
        ("zero", 100.0, "false"),
    ],
)
def test_other_sizes_change_the_verdict(key: str, factor: float, verdict: str) -> None:
    finding = BY_KEY[key].check(scaled(key, factor))
    assert finding.verdict == verdict
    assert finding != BY_KEY[key].check(scaled(key, factor * 1.5))  # the text has the figures
