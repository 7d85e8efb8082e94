"""What scontrol and sacct print, in the formats of old and new releases."""

from __future__ import annotations

import pytest

from oomdoctor.system.slurm.records import from_sacct, from_scontrol, joined, summary
from oomdoctor.units import GIB, KIB

SCONTROL = """JobId=4718 ArrayJobId=4711 ArrayTaskId=7 JobName=tune 8b
   UserId=me(1000) GroupId=lab(200) MCS_label=N/A
   Priority=4294 Nice=0 Account=lab QOS=normal
   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:125
   RunTime=00:12:44 TimeLimit=1-00:00:00 TimeMin=N/A
   ReqNodeList=(null) ExcNodeList=gpu09
   NodeList=gpu01
   Command=/home/me/tune.sbatch
   WorkDir=/home/me/my runs
   StdErr=/home/me/my runs/tune-4711_7.err
   StdIn=/dev/null
   StdOut=/home/me/my runs/tune-4711_7.out
   Power=

"""


def row(**cells: str) -> str:
    """A row of sacct; what is not named has its usual value."""
    usual = {
        "JobID": "4711", "User": "me", "State": "FAILED", "ExitCode": "1:0", "MaxRSS": "",
        "ReqMem": "64G", "NNodes": "2", "AllocCPUS": "16", "NodeList": "gpu[01-02]",
        "Elapsed": "00:12:44", "Timelimit": "1-00:00:00", "WorkDir": "/home/me",
    }  # fmt: skip
    return "|".join({**usual, **cells}.values())


def test_a_job_of_scontrol() -> None:
    (record,) = from_scontrol(SCONTROL)
    assert (record.id, record.state, record.user) == ("4711_7", "OUT_OF_MEMORY", "me")
    assert (record.nodes, record.exit_code) == ("gpu01", "0:125")
    assert record.work_dir == "/home/me/my runs"
    assert record.outputs == (
        "/home/me/my runs/tune-4711_7.out",
        "/home/me/my runs/tune-4711_7.err",
    )


def test_the_tasks_of_an_array_are_several() -> None:
    other = SCONTROL.replace("ArrayTaskId=7", "ArrayTaskId=8")
    assert [record.id for record in from_scontrol(SCONTROL + other)] == ["4711_7", "4711_8"]
    assert from_scontrol("") == []


@pytest.mark.parametrize(
    ("printed", "size"),
    [("64G", 64 * GIB), ("67108864K", 64 * GIB), ("64Gn", 128 * GIB), ("4Gc", 64 * GIB),
     ("1.50G", 3 * GIB // 2), ("512M", GIB // 2), ("0", None), ("", None), ("?", None)],
)  # fmt: skip
def test_sizes_of_all_releases(printed: str, size: int | None) -> None:
    assert from_sacct(row(ReqMem=printed))[0].requested_bytes == size


def test_rows_of_sacct_with_and_without_paths() -> None:
    old, new, torn = from_sacct(row()), from_sacct(row() + "|/a/b.out|/a/b.out"), from_sacct("a|b")
    assert old[0].outputs == ()
    assert new[0].outputs == ("/a/b.out",)
    assert torn == []


@pytest.mark.parametrize(
    ("cells", "words", "told"),
    [
        ({"State": "OUT_OF_MEMORY", "ExitCode": "0:125"}, "State=OUT_OF_MEMORY", True),
        ({"State": "TIMEOUT"}, "DUE TO TIME LIMIT", True),
        ({"State": "PREEMPTED"}, "DUE TO PREEMPTION", True),
        ({"State": "CANCELLED by 1000", "ExitCode": "0:9"}, "CANCELLED by 1000 ExitCode", True),
        ({"State": "FAILED", "ExitCode": "0:9"}, "terminated by signal 9", True),
        ({"State": "FAILED", "ExitCode": "137:0"}, "exit code 137", True),
        ({"State": "FAILED", "ExitCode": "1:0"}, "ExitCode=1:0 ReqMem", False),
    ],
)
def test_a_line_has_the_words_that_the_reader_knows(
    cells: dict[str, str], words: str, told: bool
) -> None:
    (record,) = from_sacct(row(**cells))
    assert words in record.line()
    assert record.tells_the_end is told
    assert "signal 9" not in record.line() or cells["State"] == "FAILED"


def test_each_thing_is_told_once() -> None:
    text = "\n".join(
        [
            row(State="OUT_OF_MEMORY"),
            row(JobID="4711.batch", State="OUT_OF_MEMORY", MaxRSS="1000K", ReqMem=""),
            row(JobID="4711.0", State="CANCELLED", MaxRSS="3000K", ReqMem=""),
        ]
    )
    scontrol = from_scontrol(SCONTROL.replace("ArrayJobId=4711 ArrayTaskId=7 ", ""))
    (head,) = joined([*scontrol, *from_sacct(text)])
    assert (head.teller, head.id) == ("sacct", "4711")
    assert (head.peak_bytes, head.requested_bytes) == (3000 * KIB, 64 * GIB)
    assert joined(scontrol)[0].teller == "scontrol"


def test_a_step_that_was_killed_while_its_job_went_on_is_told() -> None:
    step = row(JobID="4711.0", State="OUT_OF_MEMORY")
    lines = [r.line() for r in joined(from_sacct(row(State="COMPLETED") + "\n" + step))]
    assert "4711.0 State=OUT_OF_MEMORY" in lines[1]


def test_the_sentence_for_people() -> None:
    (record,) = from_sacct(row(State="TIMEOUT", MaxRSS="1048576K"))
    assert summary(record) == (
        "job 4711 of me on gpu[01-02]: TIMEOUT after 00:12:44 of 1-00:00:00, exit code 1:0; "
        "host memory: 1.00 GiB in the highest sample of a task, 64.0 GiB requested"
    )
    (waiting,) = from_sacct(row(State="PENDING", NodeList="None assigned", Elapsed=""))
    assert summary(waiting) == "job 4711 of me: PENDING; host memory: 64.0 GiB requested"
