"""The runs of a job, and what is said about them."""

from __future__ import annotations

import pytest
from slurm_text import SCONTROL, row

from oomdoctor.system.slurm.accounts import accounts, deciding, earlier, end_of, summary
from oomdoctor.system.slurm.records import JobRecord, from_sacct, from_scontrol
from oomdoctor.units import GIB, KIB

ALONE = SCONTROL.replace("ArrayJobId=4711 ArrayTaskId=7 ", "").replace("4718", "4711")


def test_each_thing_is_told_once() -> None:
    text = "\n".join(
        [
            row(State="OUT_OF_MEMORY"),
            row(JobID="4711.batch", State="OUT_OF_MEMORY", MaxRSS="1000K", ReqMem=""),
            row(JobID="4711.0", State="CANCELLED", MaxRSS="3000K", ReqMem=""),
        ]
    )
    scontrol = from_scontrol(SCONTROL.replace("ArrayJobId=4711 ArrayTaskId=7 ", ""))
    (account,) = accounts([*scontrol, *from_sacct(text)])
    head = account.head
    assert account.steps == ()
    assert (head.teller, head.id) == ("sacct", "4711")
    assert (head.peak_bytes, head.requested_bytes) == (3000 * KIB, 64 * GIB)
    assert accounts(scontrol)[0].head.teller == "scontrol"


def test_a_step_that_was_killed_while_its_job_went_on_is_told() -> None:
    step = row(JobID="4711.0", State="OUT_OF_MEMORY")
    (account,) = accounts(from_sacct(row(State="COMPLETED") + "\n" + step))
    assert "4711.0 State=OUT_OF_MEMORY" in account.lines()[1]


def test_the_sentence_for_people() -> None:
    (record,) = from_sacct(row(State="TIMEOUT", MaxRSS="1048576K"))
    assert summary(record) == (
        "job 4711 of me on gpu[01-02]: TIMEOUT after 00:12:44 of 1-00:00:00, exit code 1:0; "
        "host memory: 1.00 GiB in the highest sample of a task, 64.0 GiB requested"
    )
    (waiting,) = from_sacct(row(State="PENDING", NodeList="None assigned", Elapsed=""))
    assert summary(waiting) == "job 4711 of me: PENDING; host memory: 64.0 GiB requested"


def test_a_requeued_job_has_an_account_for_each_run() -> None:
    rows = [
        row(State="PREEMPTED", NodeList="gpu01"),
        row(JobID="4711.batch", State="CANCELLED", MaxRSS="2000K"),
        row(State="OUT_OF_MEMORY", NodeList="gpu02"),
        row(JobID="4711.batch", State="OUT_OF_MEMORY", MaxRSS="3000K"),
    ]
    told = accounts(from_sacct("\n".join(rows)))
    assert [(one.head.state, one.head.peak_bytes) for one in told] == [
        ("PREEMPTED", 2000 * KIB),
        ("OUT_OF_MEMORY", 3000 * KIB),
    ]
    assert deciding(told) is told[1]
    assert earlier(told) == "it was requeued and ran before: PREEMPTED on gpu01 after 00:12:44"
    assert earlier(told[1:]) is None


def test_the_run_that_ended_decides_while_the_job_runs_again() -> None:
    rows = [row(State="OUT_OF_MEMORY"), row(State="RUNNING", ExitCode="0:0")]
    told = accounts(from_sacct("\n".join(rows)))
    assert deciding(told) is told[0]


@pytest.mark.parametrize(("state", "runs"), [("REQUEUED", 2), ("NODE_FAIL", 2), ("TIMEOUT", 1)])
def test_a_job_that_waits_to_run_again(state: str, runs: int) -> None:
    waiting = from_scontrol(ALONE.replace("OUT_OF_MEMORY", "PENDING"))
    told = accounts([*waiting, *from_sacct(row(State=state))])
    assert len(told) == runs
    assert deciding(told).head.state == state
    assert told[-1].head.state == ("PENDING" if runs == 2 else state)


@pytest.mark.parametrize(
    ("state", "code", "what"),
    [
        ("PENDING", "0:0", "the job has not started"),
        ("RUNNING", "0:0", "the job is still running"),
        ("COMPLETED", "0:0", "the job completed"),
        ("FAILED", "1:0", "the job failed with exit code 1"),
        ("FAILED", "0:11", "the job was ended by signal 11"),
    ],
)
def test_how_a_job_without_a_failure_in_its_log_ended(state: str, code: str, what: str) -> None:
    end = end_of(JobRecord("sacct", "7", state, exit_code=code))
    assert end is not None
    assert end.what == what


def test_nothing_is_said_of_an_unknown_state() -> None:
    assert end_of(JobRecord("sacct", "7", "TIMEOUT")) is None


def test_a_limit_that_is_no_time_is_left_out() -> None:
    assert "Partition_Limit" not in summary(
        JobRecord("scontrol", "7", "PENDING", elapsed="00:00:00", time_limit="Partition_Limit")
    )
