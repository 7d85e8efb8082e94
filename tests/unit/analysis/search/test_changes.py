"""Changes that may make a rung fit: the cheapest first, and only if they may be enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analysis_make import GIB, measurement

from oomdoctor.analysis.search.changes import (
    changes_of,
    least_tokens,
    liger_alone,
    still_shorter,
    why_nothing_fits,
)
from oomdoctor.analysis.search.ladder import Context
from oomdoctor.analysis.verdict import conclude
from oomdoctor.records.config import Rung, TrainConfig
from oomdoctor.records.measurement import Breakdown
from oomdoctor.records.result import Attempt, ProbeResult

# 10 GiB of weights and gradients, 4 of states, 6 of activations, 3 of logits, 1 held in addition.
PARTS = Breakdown(5 * GIB, 5 * GIB, 4 * GIB, 6 * GIB, 3 * GIB, 0)


def row(usable: int, parts: Breakdown = PARTS, length: int = 2048, **values: Any) -> ProbeResult:
    """A simulated rung that needs 24 GiB."""
    config = TrainConfig(sequence_length=length, micro_batch_size=1, **values)
    measured = measurement(
        24 * GIB,
        peak_allocated_bytes=23 * GIB,
        peak_reserved_bytes=24 * GIB - 500,
        breakdown=parts,
    )
    attempt = Attempt(config, "oom", measured, None, None, None, 0.0)
    from analysis_make import request

    asked = Rung("rung", config)
    return conclude(asked, (attempt,), None, Context(usable, "cuda"), request(asked), "predicted")


def words(usable: int, *unavailable: str, **values: Any) -> list[str]:
    found = changes_of(row(usable, **values), usable, frozenset(unavailable))
    return [change.words for change in found]


def test_what_keeps_the_training_goes_before_a_shorter_sequence() -> None:
    assert words(round(23.2 * GIB))[:4] == [
        "expandable_segments",
        "Liger's loss",
        "activation checkpointing",
        "paged 8-bit AdamW",
    ]
    assert words(21 * GIB)[0] == "Liger's loss"
    assert words(21 * GIB, "loss")[0] == "activation checkpointing"


def test_if_one_change_is_not_enough_the_smallest_combination_is_tried() -> None:
    found = words(17 * GIB)
    assert found[0] == "Liger's loss + activation checkpointing"
    assert found[1] == "sequence length 576"
    assert words(16 * GIB, "loss")[0] == "activation checkpointing + paged 8-bit AdamW"


def test_a_combination_never_frees_the_same_states_twice() -> None:
    for change in changes_of(row(11 * GIB), 11 * GIB):
        assert not {"optimizer", "offload"} <= change.settings.keys()


def test_the_length_is_where_the_line_reaches_the_limit() -> None:
    """14 GiB stay and 10 GiB grow: half of the 2,048 tokens fit in 19 GiB, less a margin."""
    change = next(c for c in changes_of(row(19 * GIB), 19 * GIB) if "sequence" in c.words)
    assert change.words == "sequence length 960"
    assert change.of(row(19 * GIB).config).sequence_length == 960
    assert not any("sequence" in word for word in words(14 * GIB)[:1])


def test_less_than_a_quarter_of_the_length_is_no_answer() -> None:
    assert least_tokens(2048) == 512 and least_tokens(200) == 128
    assert words(round(16.7 * GIB))[1:] == ["sequence length 512"]
    assert words(round(16.5 * GIB))[1:] == []
    base = row(19 * GIB)
    change = next(c for c in changes_of(base, 19 * GIB) if "sequence" in c.words)
    tried = replace(row(19 * GIB, length=960), peak_device_bytes=round(20.5 * GIB))
    assert still_shorter(change, base, tried, 19 * GIB) is None


def test_after_a_miss_the_next_length_is_on_the_line_through_both_peaks() -> None:
    base = row(19 * GIB)
    change = next(c for c in changes_of(base, 19 * GIB) if "sequence" in c.words)
    tried = replace(row(19 * GIB, length=960), peak_device_bytes=20 * GIB)
    shorter = still_shorter(change, base, tried, 19 * GIB)
    assert shorter is not None and shorter.words == "sequence length 640"
    flat = replace(tried, peak_device_bytes=24 * GIB)
    assert still_shorter(change, base, flat, 19 * GIB) is None


def test_liger_alone_counts_the_logits() -> None:
    change = liger_alone(row(21 * GIB), 21 * GIB)
    assert change is not None and change.frees_bytes == 3 * GIB
    assert liger_alone(row(20 * GIB), 20 * GIB) is None
    assert liger_alone(row(21 * GIB, loss="liger"), 21 * GIB) is None


def test_where_nothing_helps_it_says_what_alone_is_too_large() -> None:
    said = "nothing here makes it fit: its weights alone need 5.00 GiB"
    assert why_nothing_fits(row(4 * GIB), 4 * GIB, ()) == said
    assert "weights and gradients alone need 10.0 GiB" in why_nothing_fits(
        row(9 * GIB), 9 * GIB, ()
    )
    assert why_nothing_fits(row(12 * GIB), 12 * GIB, ("a", "b")) == "not even with a, or b"
