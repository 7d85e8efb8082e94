"""One reply of several ranks: the worst of those that measured, or the first that failed."""

from __future__ import annotations

from analysis_make import measurement

from oomdoctor.records.job.measurement import OomEvent, RankPeak
from oomdoctor.records.job.result import Failure, Reply
from oomdoctor.worker.ranks.run_ranks import joined

GIB = 1 << 30
OOM = Reply(status="oom", oom=OomEvent("CUDA out of memory", "cuda_caching_allocator", "backward"))
WAITED = Reply(status="failed", failure=Failure("DistBackendError", "connection closed"))


def measured(allocated: int) -> Reply:
    found = measurement(allocated, peak_rss_bytes=GIB)
    return Reply(status="measured", measurement=found)


def test_the_rank_that_needs_most_decides() -> None:
    found = joined({0: measured(2 * GIB), 1: measured(3 * GIB)}, None, 2).measurement
    assert found is not None
    assert found.peak_device_bytes == 3 * GIB
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert found.ranks[1] == RankPeak(1, found.peak_allocated_bytes, found.peak_reserved_bytes)
    assert found.host_peak_bytes == 2 * GIB


def test_host_memory_is_that_of_a_node() -> None:
    found = joined(dict.fromkeys(range(4), measured(GIB)), None, 2).measurement
    assert found is not None
    assert found.host_peak_bytes == 2 * GIB


def test_host_memory_is_unknown_where_one_rank_stands_for_all() -> None:
    found = joined({0: measured(GIB)}, None).measurement
    assert found is not None
    assert found.host_peak_bytes is None


def test_the_rank_that_failed_first_gives_the_reason() -> None:
    assert joined({0: WAITED, 1: OOM, 2: measured(GIB)}, 1) is OOM


def test_a_lost_connection_is_not_the_reason_where_memory_ran_out() -> None:
    assert joined({0: WAITED, 1: OOM}, 0) is OOM


def test_without_any_reply_it_failed() -> None:
    assert joined({}, 0).status == "failed"
