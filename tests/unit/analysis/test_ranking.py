"""The order of the rungs that fit, the reasons and the picks."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import datetime

import pytest
from analysis_make import GIB, measurement, result

from oomdoctor.analysis.ranking import best, in_order, rank, ranked_by, ties, without_speed
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Picks, bare_report

FAST = result("fast", tokens_per_s=1000.0, peak_device_bytes=20 * GIB, max_micro_batch_size=4)
LEAN = result(
    "lean", method="qlora", tokens_per_s=500.0, peak_device_bytes=5 * GIB, max_micro_batch_size=16
)
MIDDLE = result(
    "middle", method="lora", tokens_per_s=800.0, peak_device_bytes=10 * GIB, max_micro_batch_size=16
)
ALL = (MIDDLE, result("gone", "oom"), FAST, LEAN)


@pytest.mark.parametrize(
    ("by", "order"),
    [
        ("throughput", ("fast", "middle", "lean")),
        ("memory", ("lean", "middle", "fast")),
        ("micro-batch", ("lean", "middle", "fast")),
    ],
)
def test_best_first(by, order):
    shuffled = list(ALL)
    random.Random(3).shuffle(shuffled)
    assert rank(tuple(shuffled), by).order == order


def test_every_place_has_its_reason():
    assert rank(ALL, "throughput").reasons == {
        "fast": "the fastest of 3: 1,000 tokens/s",
        "middle": "0.80x the speed of the fastest, with 10.0 GiB less memory",
        "lean": "0.50x the speed of the fastest, with 15.0 GiB less memory",
    }
    assert rank(ALL, "memory").reasons["lean"] == "the lowest peak of 3: 5.00 GiB"
    assert rank(ALL, "memory").reasons["fast"] == "15.0 GiB more than the lowest peak"
    assert rank(ALL, "micro-batch").reasons == {
        "lean": "the largest micro-batch size of 3: 16",
        "middle": "the same micro-batch size at a peak of 10.0 GiB",
        "fast": "micro-batch size 4",
    }


def test_a_pick_for_each_method_in_that_order():
    other = result("other", tokens_per_s=10.0, peak_device_bytes=GIB, max_micro_batch_size=1)
    assert rank((*ALL, other), "throughput").picks == Picks("fast", "middle", "lean")
    assert rank((*ALL, other), "memory").picks == Picks("other", "middle", "lean")
    assert rank((LEAN,), "throughput").picks == Picks(None, None, "lean")


def test_equal_rungs_go_by_the_lower_peak():
    a = result("a", tokens_per_s=100.0, peak_device_bytes=9)
    b = result("b", tokens_per_s=100.0, peak_device_bytes=8)
    assert rank((a, b), "throughput").order == ("b", "a")


def test_tensor_bytes_rank_where_there_is_no_device_use():
    a = result("a", peak_allocated_bytes=9)
    b = result("b", peak_allocated_bytes=8)
    assert rank((a, b), "memory").order == ("b", "a")


@pytest.mark.parametrize("by", ["throughput", "memory", "micro-batch"])
def test_what_has_no_figure_comes_last_and_says_so(by):
    ranking = rank((result("empty"), FAST), by)
    assert ranking.order == ("fast", "empty")
    assert re.search("unknown|not measured", ranking.reasons["empty"])
    assert rank((result("empty"),), by).order == ("empty",)


def test_nothing_fits():
    ranking = rank((result("gone", "oom"),), "throughput")
    assert (ranking.order, ranking.reasons) == ((), {})
    assert ranking.picks == Picks(None, None, None)


@pytest.mark.parametrize("state", ["not_settled", "not_believable"])
def test_times_that_cannot_be_trusted_have_no_place_by_speed(state):
    shaky = result("shaky", tokens_per_s=9999.0, peak_device_bytes=GIB, speed_state=state)
    ranking = rank((shaky, FAST, LEAN), "throughput")
    assert ranking.order == ("fast", "lean")
    assert ranking.picks == Picks("fast", None, "lean")
    assert ranking.reasons["shaky"].startswith("not ranked: ")
    assert rank((shaky,), "throughput").order == ()
    assert rank((shaky,), "throughput").picks == Picks(None, None, None)
    by_memory = rank((shaky, FAST, LEAN), "memory")
    assert by_memory.order == ("shaky", "lean", "fast")
    assert by_memory.picks.full == "shaky"


def test_settled_and_estimated_times_are_ranked():
    settled = result("settled", tokens_per_s=1.0, speed_state="settled")
    estimated = result("estimated", tokens_per_s=2.0, speed_state="estimated")
    assert rank((settled, estimated), "throughput").order == ("estimated", "settled")


class TestSpeedsThatDoNotCompare:
    """A card without a published peak rate for a type."""

    slow = result("slow", evidence="predicted", tokens_per_s=100.0, peak_device_bytes=20 * GIB)
    unknown = result("unknown", evidence="predicted", peak_device_bytes=9 * GIB)
    host = replace(
        result("host", evidence="predicted", peak_device_bytes=5 * GIB),
        config=TrainConfig(activation_checkpointing="offload"),
    )

    def test_memory_decides(self):
        rows = (self.slow, self.unknown)
        assert ranked_by(rows, "throughput") == "memory"
        ranking = rank(rows, "throughput")
        assert ranking.order == ("unknown", "slow")
        assert ranking.picks.full == "unknown"
        assert ranking.reasons["unknown"] == "the lowest peak of 2: 9.00 GiB"
        assert best(rows, "throughput") is self.unknown

    def test_the_asked_order_stays_otherwise(self):
        rows = (self.slow, self.unknown)
        assert ranked_by(rows, "micro-batch") == "micro-batch"
        assert ranked_by((self.slow, FAST), "throughput") == "throughput"

    def test_a_measured_speed_is_not_given_up_for_a_prediction(self):
        rows = (FAST, self.unknown)
        assert rank(rows, "throughput").order == ("fast", "unknown")

    def test_rungs_that_use_the_host_never_have_a_speed(self):
        rows = (self.slow, self.host)
        assert without_speed(rows) == []
        assert rank(rows, "throughput").order == ("slow", "host")
        assert best(rows, "throughput") is self.slow

    def test_an_emulated_card_has_no_speeds(self):
        rows = (
            result("large", evidence="emulated", peak_device_bytes=9 * GIB),
            replace(self.host, evidence="emulated"),
        )
        assert ranked_by(rows, "throughput") == "memory"
        assert rank(rows, "throughput").order == ("host", "large")
        assert ranked_by(rows[1:], "throughput") == "memory"

    def test_an_estimate_beside_an_emulated_peak_counts(self):
        checked = result("checked", evidence="emulated", tokens_per_s=50.0)
        assert ranked_by((self.slow, checked), "throughput") == "throughput"

    def test_what_does_not_fit_does_not_count(self):
        gone = result("gone", "oom", evidence="predicted")
        assert ranked_by((self.slow, gone), "throughput") == "throughput"


def estimated(label: str, rate: float, spread: float, gigabytes: int, method: str = "full"):
    return result(
        label, method=method, tokens_per_s=rate, tokens_per_s_spread=spread,
        peak_device_bytes=gigabytes * GIB, speed_state="estimated",
    )  # fmt: skip


def test_estimates_that_overlap_are_equal_and_the_leaner_goes_first():
    """A few per cent of a speed that is off by 30% filled the card."""
    rows = (
        estimated("full card", 1000.0, 0.3, 74),
        estimated("lean", 950.0, 0.3, 48),
        estimated("middle", 700.0, 0.1, 60),
        estimated("slow", 500.0, 0.1, 20),
    )
    assert rank(rows, "throughput").order == ("lean", "middle", "full card", "slow")
    reasons = rank(rows, "throughput").reasons
    assert reasons["full card"] == "the fastest of 4: 1,000 tokens/s"
    assert reasons["lean"].startswith("0.95x the speed of the fastest, too close to call")
    assert "too close" not in reasons["slow"]


def waiting(row: ProbeResult, limit: str, **changes: object) -> ProbeResult:
    """The estimate of a step that waits for the device or the host."""
    timing = Timing(1.0, 0.3, 1.0, 0.3, 1.0, 0, 0, "estimated", None, limit)
    config = replace(row.config, **changes)
    return replace(row, config=config, measurement=measurement(times=timing))


@pytest.mark.parametrize(
    ("first", "second", "changes", "order"),
    [
        ("device", "device", {}, ("full", "lora")),
        ("device", "host", {}, ("lora", "full")),
        ("host", "host", {}, ("full", "lora")),
        ("device", "device", {"weights_dtype": "float32"}, ("lora", "full")),
        ("device", "device", {"sharding": "fsdp", "world_size": 2}, ("lora", "full")),
        ("device", "device", {"compile": True}, ("lora", "full")),
    ],
)
def test_what_errors_share_makes_no_tie(first, second, changes, order):
    """A card that is slower than published is so for both: 30% does not hide 20%."""
    rows = (
        waiting(estimated("full", 1000.0, 0.3, 70), first),
        waiting(estimated("lora", 800.0, 0.3, 20, "lora"), second, **changes),
    )
    assert rank(rows, "throughput").order == order


def test_errors_of_different_rates_do_not_add_up():
    """Half the speed is no tie: both errors are hardly at their worst, in opposite directions."""
    rows = (
        waiting(estimated("bf16", 14_360.0, 0.34, 20), "device"),
        waiting(estimated("fp32", 7140.0, 0.33, 10), "device", weights_dtype="float32"),
    )
    assert rank(rows, "throughput").order == ("bf16", "fp32")


def test_close_estimates_are_a_tie_even_with_shared_errors():
    rows = tuple(
        waiting(estimated(str(rate), rate, 0.3, peak), "device")
        for rate, peak in ((1000.0, 70), (900.0, 20))
    )
    assert rank(rows, "throughput").order == ("900.0", "1000.0")


def test_a_group_is_led_by_its_fastest_and_overlaps_do_not_add_up():
    """Each overlaps its neighbor, but the last is not equal to the first."""
    rows = tuple(estimated(str(rate), rate, 0.1, 10) for rate in (1000.0, 870.0, 700.0, 620.0))
    assert [[one.label for one in group] for group in ties(rows)] == [
        ["1000.0", "870.0"],
        ["700.0", "620.0"],
    ]


def test_measured_speeds_rank_as_they_are():
    rows = tuple(
        replace(estimated(str(rate), rate, 0.3, peak), speed_state="settled")
        for rate, peak in ((1000.0, 74), (990.0, 20))
    )
    assert rank(rows, "throughput").order == ("1000.0", "990.0")


@pytest.mark.parametrize("by", ["throughput", "memory", "micro-batch"])
def test_a_borderline_rung_has_no_place_and_is_no_pick(by):
    found = rank((replace(FAST, borderline=True), MIDDLE), by)
    assert found.order == ("middle",) and found.picks == Picks(None, "middle", None)
    assert "fast" not in found.reasons


def test_every_page_lists_the_rungs_in_one_order():
    near = replace(result("near", "oom", peak_device_bytes=9 * GIB), borderline=True)
    nearer = replace(result("nearer", peak_device_bytes=8 * GIB), borderline=True)
    far = result("far", "oom", missed_by_bytes=9 * GIB)
    short = result("short", "oom", missed_by_bytes=GIB)
    skipped = result("skipped", "skipped", missed_by_bytes=4 * GIB)
    unsettled = result("unsettled", speed_state="not_settled", peak_device_bytes=GIB)
    rest = (result("failed", "failed"), result("unknown", "oom"), far, near, nearer, skipped)
    found = rank((*rest, short, unsettled, FAST, LEAN), "throughput")
    report = replace(
        bare_report("plan", "ok", 0, datetime.now(), 1.0),
        results=(*rest, short, unsettled, FAST, LEAN),
        ranking=found.order,
    )
    order = [one.label for one in in_order(report)]
    fitting = ["fast", "lean", "unsettled", "nearer", "near"]
    assert order == [*fitting, "short", "skipped", "far", "unknown", "failed"]
