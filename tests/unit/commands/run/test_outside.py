"""What ended a command, by what was counted outside of it."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.commands.run.process.command import Ended
from oomdoctor.commands.run.rank_records import Process
from oomdoctor.commands.run.seen_outside import (
    Samples,
    cut_off,
    lines_from_outside,
    notes_from_outside,
    unless_stopped,
)
from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.run import HostMemory
from oomdoctor.units import GIB, MIB

HOST = HostMemory(64 * GIB, GIB, 0, 64 * MIB, 60 * MIB)
KILLED, FAILED, BUS_ERROR = Ended(-9, None), Ended(1, None), Ended(-7, None)


def _process(**record: Any) -> Process:
    return Process(0, {"ended": True, "exception": None, **record})


def _resource(lines: list[str]) -> str:
    incidents, facts = scan(lines)
    (found,) = diagnose("output", incidents, facts, Given())
    assert found.causes[0].confidence == "high"
    return found.resource


def test_a_kill_that_the_kernel_counted_is_for_host_memory() -> None:
    lines = lines_from_outside(KILLED, [], replace(HOST, kernel_kills=1))
    assert _resource(lines) == "host" and "of 64.0 GiB, 1.00 GiB was" in lines[0]


def test_so_is_a_rank_that_left_no_last_record() -> None:
    host = replace(HOST, kernel_kills=1)
    assert lines_from_outside(FAILED, [_process(ended=False)], host)
    assert not lines_from_outside(FAILED, [_process()], host)


def test_a_notebook_that_takes_our_stop_for_an_error_did_not_fail() -> None:
    kernel = _process(stopped="steady", exception={"type": "SystemExit"})
    helper = _process(stopped=None)
    assert unless_stopped(FAILED, [kernel, helper]).exit_code == 0
    assert unless_stopped(FAILED, [helper]) == FAILED
    failed = _process(stopped=None, exception={"type": "ValueError"})
    assert unless_stopped(FAILED, [kernel, failed]) == FAILED
    assert unless_stopped(KILLED, [kernel]) == KILLED


def test_neither_did_a_program_that_lost_the_stopped_worker_of_ray() -> None:
    actor = _process(stopped="steps", is_ray_worker=True)
    killed = _process(stopped=None, ended=False, is_ray_worker=True)
    assert unless_stopped(FAILED, [actor, killed]).exit_code == 0
    assert unless_stopped(FAILED, [killed]) == FAILED
    failed = _process(stopped=None, exception={"type": "ValueError"})
    assert unless_stopped(FAILED, [actor, failed]) == FAILED


def test_a_kill_without_a_count_says_who_did_not_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert lines_from_outside(KILLED, [], HOST) == []
    (note,) = notes_from_outside(KILLED, HOST)
    assert "counted no kill" in note and "somebody sent it" in note


def test_a_bus_error_with_a_full_shm() -> None:
    full = replace(HOST, shm_least_free_bytes=0)
    assert _resource(lines_from_outside(BUS_ERROR, [], full)) == "shm"
    assert lines_from_outside(BUS_ERROR, [], HOST) == []
    assert lines_from_outside(FAILED, [], full) == []


@pytest.mark.parametrize(
    ("end", "word"), [("1000", "at its time limit"), ("9000", "before"), ("", "or somebody")]
)
def test_slurm_ends_a_job(end: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_END_TIME", end)
    monkeypatch.setattr(time, "time", lambda: 990.0)
    (note,) = notes_from_outside(Ended(-15, signal.SIGTERM), HOST)
    assert "job 77" in note and word in note
    assert notes_from_outside(FAILED, HOST) == []


def test_nothing_is_said_of_a_command_that_succeeded() -> None:
    host = replace(HOST, kernel_kills=3, shm_least_free_bytes=0)
    assert lines_from_outside(Ended(0, None), [_process(ended=False)], host) == []


def test_a_failure_is_seen_once_and_again_when_it_comes_again(tmp_path: Path) -> None:
    samples = Samples()
    assert not samples.has_failed_again(tmp_path)
    mark = tmp_path / "oom-11"
    mark.write_text("1")
    assert samples.has_failed_again(tmp_path) and not samples.has_failed_again(tmp_path)
    import os

    os.utime(mark, ns=(1, 1))
    assert samples.has_failed_again(tmp_path)


def test_what_a_killed_rank_left_is_of_before() -> None:
    killed, raised = _process(ended=False, ooms=[]), _process(ooms=[], exception={"type": "E"})
    assert cut_off([killed]) == [0]
    assert cut_off([_process(ooms=[])]) == []
    assert cut_off([killed, raised]) == []  # the others are killed because of it
