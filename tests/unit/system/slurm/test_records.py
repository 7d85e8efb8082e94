"""What scontrol and sacct print, in the formats of old and new releases."""

from __future__ import annotations

import pytest
from slurm_text import SCONTROL, row

from oomdoctor.system.slurm.records import from_sacct, from_scontrol
from oomdoctor.units import GIB


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
