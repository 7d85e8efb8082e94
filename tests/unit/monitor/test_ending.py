"""When a training is stopped, and that all ranks stop after the same step."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.monitor.inside import ending
from oomdoctor.monitor.inside.ending import agree, wants_to_stop
from oomdoctor.records.report.watch import StepPeaks


def _steps(*peaks: int) -> list[StepPeaks]:
    return [StepPeaks(i, peak, peak, 10, 20) for i, peak in enumerate(peaks, 1)]


async def _ask() -> bool:
    return ending.ends_a_loop_only()


def test_an_exit_ends_only_a_loop_where_the_loop_runs_in_a_thread() -> None:
    answers: list[bool] = []
    for asks in (lambda: asyncio.run(_ask()), ending.ends_a_loop_only):
        answers.append(asks())
        thread = threading.Thread(target=lambda asks=asks: answers.append(asks()))
        thread.start()
        thread.join()
    assert answers == [False, True, False, False]


def test_memory_repeats_after_two_equal_steps() -> None:
    assert wants_to_stop("steady", 2, [_steps(5, 7)]) is None
    assert wants_to_stop("steady", 3, [_steps(5, 7, 7)]) == "steady"


def test_what_a_step_leaves_counts_too() -> None:
    grown = [StepPeaks(1, 5, 5, 10, 20), StepPeaks(2, 5, 5, 11, 20)]
    assert wants_to_stop("steady", 2, [grown]) is None


def test_all_devices_have_to_repeat() -> None:
    assert wants_to_stop("steady", 3, [_steps(5, 7, 7), _steps(5, 6, 7)]) is None
    assert wants_to_stop("steady", 3, []) is None


def test_a_number_of_steps_and_all() -> None:
    assert wants_to_stop(2, 1, [_steps(5)]) is None
    assert wants_to_stop(2, 2, [_steps(5, 6)]) == "steps"
    assert wants_to_stop("all", 3, [_steps(7, 7, 7)]) is None


def _answers(folder: Path, votes: list[bool]) -> list[bool | None]:
    found: list[bool | None] = [None] * len(votes)

    def ask(rank: int) -> None:
        found[rank] = agree(folder, rank, len(votes), 3, votes[rank])

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(votes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize(
    ("votes", "answer"), [([True, True, True], True), ([True, False, True], False)]
)
def test_ranks_get_one_answer(tmp_path: Path, votes: list[bool], answer: bool) -> None:
    assert _answers(tmp_path, votes) == [answer] * len(votes)


def test_a_rank_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "votes").mkdir()
    (tmp_path / "votes" / "1.pid").write_text(str(ended.pid))
    assert agree(tmp_path, 0, 2, 1, True) is None


def test_a_silent_rank_is_waited_for_until_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_PATIENCE_S", 0.05)
    assert agree(tmp_path, 0, 2, 1, True) is None


def test_memory_may_repeat_after_several_backward_passes() -> None:
    assert wants_to_stop("steady", 4, [_steps(5, 7, 5, 7)]) is None
    assert wants_to_stop("steady", 4, [_steps(5, 7, 5, 7)], most_cycle=4) == "steady"
    assert wants_to_stop("steady", 4, [_steps(5, 7, 5, 8)], most_cycle=4) is None
    assert wants_to_stop("steady", 5, [_steps(9, 5, 7, 5, 7)], most_cycle=4) == "steady"
    assert wants_to_stop("steady", 3, [_steps(7, 5, 7)], most_cycle=4) is None


def test_frames_that_watch_are_not_told() -> None:
    watching = Path(ending.__file__).with_name("passes.py")
    names: dict[str, Any] = {"frames": ending.frames_here}
    exec(compile("def watched():\n    return frames()", str(watching), "exec"), names)
    told = names["watched"]()
    assert told[0]["name"] == "test_frames_that_watch_are_not_told"
    assert all(Path(one["filename"]).parent != watching.parent for one in told)


def test_a_worker_of_ray_runs_no_script_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    assert not ending.is_ray_worker()
    file = "/site-packages/ray/_private/workers/default_worker.py"
    monkeypatch.setattr(main, "__file__", file, raising=False)
    assert ending.is_ray_worker() and ending.script_file() is None
