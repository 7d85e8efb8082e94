"""Which runs are meant, and which are over a limit."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.commands.runs_choosing import Limits, Wanted, chosen, over_limit, parse_limits
from oomdoctor.records.report.earlier_runs import StoredRun

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DAY = 86400.0


def run(days: float, status: str = "ok", size: int = 100, **changes: object) -> StoredRun:
    began = (NOW - timedelta(days=days)).isoformat()
    plain = StoredRun(
        f"run-{days}", "run", "/r", "plan", (), "org/Qwen", None, began, began, "ok", 1, 1, "",
        size, None,
    )  # fmt: skip
    return replace(plain, status=status, **changes)  # type: ignore[arg-type]


RUNS = [run(days) for days in (0, 1, 2, 40, 90)]


@pytest.mark.parametrize(
    ("limits", "deleted"),
    [
        (Limits(), []),
        (Limits(keep=3), ["run-90", "run-40"]),
        (Limits(keep=0), ["run-90", "run-40", "run-2", "run-1", "run-0"]),
        (Limits(older_than_s=30 * DAY), ["run-90", "run-40"]),
        (Limits(max_bytes=250), ["run-90", "run-40", "run-2"]),
        (Limits(max_bytes=500), []),
        (Limits(keep=4, older_than_s=30 * DAY), ["run-90", "run-40"]),
    ],
)
def test_the_oldest_go_first(limits: Limits, deleted: list[str]) -> None:
    assert [one.name for one in over_limit(RUNS, limits, NOW)] == deleted


@pytest.mark.parametrize(
    ("kept", "stays"),
    [
        (run(50, "running"), True),
        (run(50, "foreign"), True),
        (run(50, "interrupted", changed_at=(NOW - timedelta(minutes=5)).isoformat()), True),
        (run(50, "unfinished", changed_at=(NOW - timedelta(minutes=5)).isoformat()), True),
        (run(50, "interrupted"), False),
        (run(50, "unreadable"), False),
    ],
)
def test_what_may_go_on_is_never_deleted(kept: StoredRun, stays: bool) -> None:
    assert (over_limit([kept], Limits(keep=0, max_bytes=1), NOW) == ()) is stays


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1000)), max_size=8),
    st.one_of(st.just(math.inf), st.integers(0, 8)),
    st.one_of(st.just(math.inf), st.integers(1, 3000)),
)
def test_what_stays_is_within_every_limit(
    made: list[tuple[int, int]], keep: float, size: float
) -> None:
    runs = [run(days, size=bytes_) for days, bytes_ in sorted(made)]
    gone = over_limit(runs, Limits(keep, 100 * DAY, size), NOW)
    left = list(runs)
    for one in gone:
        left.remove(one)
    assert len(left) <= keep
    assert sum(one.size_bytes for one in left) <= size
    assert all(datetime.fromisoformat(str(one.started_at)) >= NOW - timedelta(100) for one in left)


def test_filters() -> None:
    case = replace(run(3), command="run", command_line=("python", "train_qwen.py"), model=None)
    other = replace(run(4), model="meta/Llama", command="probe")
    runs = [*RUNS, case, other]

    def names(**wanted: object) -> list[str]:
        return [one.name for one in chosen(runs, Wanted(**wanted))]  # type: ignore[arg-type]

    assert names() == [one.name for one in runs]
    assert "run-3" in names(model="QWEN") and "run-4" not in names(model="QWEN")
    assert names(command="probe") == ["run-4"]
    assert names(since=NOW - timedelta(days=1.5)) == ["run-0", "run-1"]


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("200", Limits(keep=200)),
        ("30d", Limits(older_than_s=30 * DAY)),
        ("5GiB", Limits(max_bytes=5 * 1024**3)),
        ("200, 2w, 500M", Limits(200, 14 * DAY, 500 * 1024**2)),
    ],
)
def test_a_limit_in_words(text: str, limits: Limits) -> None:
    assert parse_limits(text) == limits


@pytest.mark.parametrize("text", ["", "many", "-1", "3,4", "0d"])
def test_a_limit_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|two limits|above zero"):
        parse_limits(text)
