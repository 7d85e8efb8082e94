"""A Slurm job's output by its id, with records of our own in place of Slurm's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_text import tools_without_slurm

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.system.slurm import jobs, records
from oomdoctor.system.slurm.jobs import find_jobs, is_job_id

Fake = Callable[[str, str], None]
UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a shell script on PATH under the name of a command of Slurm."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{tools_without_slurm(tmp_path / 'tools')}")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def write(command: str, script: str) -> None:
        (folder / command).write_text(f"#!/bin/sh\n{script}\n")
        (folder / command).chmod(0o755)

    return write


def row(job: str, state: str, code: str = "0:0", folder: str = "/nowhere") -> str:
    return f"{job}|me|{state}|{code}||64G|1|8|gpu01|00:12:44|1-00:00:00|{folder}"


def shown(job: str, state: str, out: Path) -> str:
    return (
        f"cat <<X\nJobId={job} JobName=a\n   UserId=me(1000)\n   JobState={state}\n"
        f"   WorkDir={out.parent}\n   StdErr={out}\n   StdOut={out}\n\nX"
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [("123456", True), ("123456_7", True), ("123456.0", True), ("123456_7.batch", True),
     ("123456+1", True), ("trace.txt", False), ("4711.out", False), ("١٢٣", False), ("-", False),
     ("", False), ("12 3", False), ("--help", False)],
)  # fmt: skip
def test_ids(text: str, answer: bool) -> None:
    assert is_job_id(text) is answer


def test_scontrol_names_the_output(fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "a log.txt"
    out.write_text("text")
    fake("scontrol", f'[ "$*" = "show job 77" ] || exit 9\n{shown("77", "FAILED", out)}')
    (job,) = find_jobs("77")
    assert (job.name, job.files) == ("77", (out,))
    assert job.lines == ("scontrol: 77 State=FAILED",)
    assert job.notes == ("job 77 of me: FAILED",)


def test_new_sacct_names_the_output_too(fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "b.txt"
    out.write_text("text")
    fake("scontrol", UNKNOWN)
    fake("sacct", f"echo '{row('77', 'OUT_OF_MEMORY', '0:125')}|{out}|{out}'")
    (job,) = find_jobs("77")
    assert job.files == (out,)
    assert "State=OUT_OF_MEMORY" in job.lines[0]


@pytest.mark.parametrize(
    "complaint", ["sacct: unrecognized option", 'sacct: fatal: Invalid field requested: "StdOut"']
)
def test_old_sacct_is_asked_again(fake: Fake, complaint: str) -> None:
    fake(
        "sacct",
        f'case "$*" in *expand*) echo "{complaint}" >&2; exit 1;; esac\n'
        f"echo '{row('77', 'TIMEOUT')}'",
    )
    (job,) = find_jobs("77")
    assert "DUE TO TIME LIMIT" in job.lines[0]
    assert "found no output file of job 77" in job.notes[1]


def test_the_usual_names_are_looked_for_here_and_in_the_work_folder(
    fake: Fake, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    fake("sacct", f"echo '{row('77', 'FAILED', folder=str(tmp_path))}'")
    for name in ("train-770.out", "train-1_77.out", "train-77_1.out", "77.py"):
        (folder / name).write_text("another")
    (tmp_path / "run-77.err").write_text("text")
    assert find_jobs("77")[0].files == (tmp_path / "run-77.err",)
    (tmp_path / "slurm-77.out").write_text("text")
    assert find_jobs("77")[0].files == (tmp_path / "slurm-77.out",)
    (folder / "slurm-77.out").write_text("text")
    assert find_jobs("77")[0].files == (folder / "slurm-77.out",)


def test_without_slurm_a_file_here_is_enough(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "work" / "slurm-77_3.out").write_text("text")
    (job,) = find_jobs("77_3")
    assert job.files == (tmp_path / "work" / "slurm-77_3.out",)
    assert job.notes == ("Slurm has no record of job 77_3",)


def test_an_array_is_several_jobs(fake: Fake, tmp_path: Path) -> None:
    rows = [row("77_0", "OUT_OF_MEMORY"), row("77_1", "TIMEOUT"), row("77_[2-9]", "PENDING")]
    fake("sacct", "cat <<X\n" + "\n".join(rows) + "\nX")
    (tmp_path / "work" / "slurm-77_1.out").write_text("text")
    first, second = find_jobs("77")
    assert (first.name, first.files) == ("77_0", ())
    assert (second.name, second.files) == ("77_1", (tmp_path / "work" / "slurm-77_1.out",))


def test_a_step_is_read_from_the_output_of_its_job(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "work" / "slurm-77.out").write_text("text")
    fake("sacct", f'[ "$2" = 77.0 ] && echo "{row("77.0", "OUT_OF_MEMORY")}"')
    (job,) = find_jobs("77.0")
    assert (job.name, job.files) == ("77.0", (tmp_path / "work" / "slurm-77.out",))
    assert job.lines[0].startswith("sacct: 77.0 State=OUT_OF_MEMORY")


def test_the_job_of_another_user(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "theirs.out"
    out.write_text("text")
    monkeypatch.setattr(jobs.os, "access", lambda *_: False)
    fake("scontrol", shown("77", "FAILED", out))
    with pytest.raises(OomDoctorError) as caught:
        find_jobs("77")
    assert (caught.value.code, caught.value.exit_code) == ("no_job_output", ExitCode.USAGE)
    assert f"of me: FAILED; cannot read {out}: Permission denied" in caught.value.message
    fake("scontrol", shown("77", "OUT_OF_MEMORY", out))  # the end is told all the same
    assert "cannot read" in find_jobs("77")[0].notes[1]


def test_only_regular_files_are_read(fake: Fake, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fake("scontrol", shown("77", "OUT_OF_MEMORY", pipe))
    assert find_jobs("77")[0].files == ()


@pytest.mark.parametrize(
    ("scontrol", "sacct", "code", "exit_code", "words"),
    [
        (None, None, "no_slurm", ExitCode.USAGE, "not installed"),
        (UNKNOWN, "exit 0", "no_such_job", ExitCode.USAGE, "sacct has no record of it"),
        (UNKNOWN, "echo 'Slurm accounting storage is disabled' >&2; exit 1", "no_such_job",
         ExitCode.USAGE, "Invalid job id specified; sacct: Slurm accounting storage is disabled"),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None, "slurm_silent",
         ExitCode.MACHINE_UNFIT, "scontrol: Unable to contact slurm controller"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered(
    fake: Fake, scontrol: str | None, sacct: str | None, code: str, exit_code: ExitCode, words: str
) -> None:
    for command, script in (("scontrol", scontrol), ("sacct", sacct)):
        if script is not None:
            fake(command, script)
    with pytest.raises(OomDoctorError) as caught:
        find_jobs("77")
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
    assert words in caught.value.message
    assert "oomdoctor explain slurm-77.out" in (caught.value.hint or "")


def test_a_command_that_hangs_is_ended_with_its_children(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "DEADLINE_S", 0.5)
    fake("scontrol", f"sleep 60 &\necho $! > {tmp_path / 'pid'}\nsleep 60")
    fake("sacct", "exit 0")
    start = time.monotonic()
    with pytest.raises(OomDoctorError) as caught:
        find_jobs("77")
    assert time.monotonic() - start < 10
    assert caught.value.code == "slurm_silent"
    assert "scontrol did not answer within" in caught.value.message
    pid = (tmp_path / "pid").read_text().strip()
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_failed_job_without_its_output_is_no_answer(fake: Fake) -> None:
    fake("sacct", f"echo '{row('77', 'FAILED', '1:0')}'")
    with pytest.raises(OomDoctorError) as caught:
        find_jobs("77")
    assert caught.value.code == "no_job_output"
    assert "looked for" in caught.value.message
