"""Many jobs by one question to sacct, and the files that they wrote."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from slurm_text import tools_without_slurm

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.system.slurm.outputs import Folders, Submission, output_files
from oomdoctor.system.slurm.site import dead_jobs, jobs_with, start_of

NOW = datetime(2026, 11, 23, 6, 30, 15)
OLD = "case \"$*\" in *--expand-patterns*) echo 'sacct: unrecognized option' >&2; exit 1;; esac\n"
Fake = Callable[[str], None]


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a sacct on PATH: a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{tools_without_slurm(tmp_path / 'tools')}")

    def write(script: str) -> None:
        (folder / "sacct").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "sacct").chmod(0o755)

    return write


def row(job: str, state: str, work: Path, line: str = "sbatch train.sh", user: str = "me") -> str:
    return (
        f"{job}|{user}|{state}|1:0||64G|1|8|gpu01|00:12:44|1-00:00:00|{work}"
        f"|{job.replace('_', '0')}|gpu|2026-11-23T06:00:00|train|{line}"
    )


def told(*rows: str) -> str:
    return OLD + "cat <<'X'\n" + "\n".join(rows) + "\nX"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("yesterday", "2026-11-22T00:00:00"),
        ("Today", "2026-11-23T00:00:00"),
        ("3d", "2026-11-20T06:30:15"),
        ("12 hours ago", "2026-11-22T18:30:15"),
        ("2026-11-01", "2026-11-01"),
        ("now-7days", "now-7days"),
    ],
)
def test_times(text: str, start: str) -> None:
    assert start_of(text, NOW) == start


def test_the_jobs_that_died(sacct: Fake, tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_text("text")
    (tmp_path / "slurm-8_1.out").write_text("text")
    sacct(
        told(
            row("7", "FAILED", tmp_path, "sbatch --wrap echo a|b\nsrun train"),
            row("7.0", "OUT_OF_MEMORY", tmp_path),
            row("8_1", "TIMEOUT", tmp_path),
        )
    )
    first, second = dead_jobs("yesterday", (), everyone=False)
    assert (first.head.id, first.head.state, first.partition) == ("7", "FAILED", "gpu")
    assert "7.0 State=OUT_OF_MEMORY" in first.lines[1]
    assert first.files == (tmp_path / "slurm-7.out",)
    assert (second.head.id, second.files) == ("8_1", (tmp_path / "slurm-8_1.out",))


@pytest.mark.parametrize(
    ("users", "everyone", "words"),
    [((), False, ""), (("ada", "bob"), False, "--user=ada,bob"), ((), True, "--allusers")],
)
def test_whose_jobs(
    sacct: Fake, tmp_path: Path, users: tuple[str, ...], everyone: bool, words: str
) -> None:
    sacct(f'echo "$*" > {tmp_path}/asked')
    assert dead_jobs("2026-11-22", users, everyone=everyone) == []
    asked = (tmp_path / "asked").read_text()
    assert words in asked
    assert ("--user" in asked, "--allusers" in asked) == (bool(users), everyone)
    assert "--starttime 2026-11-22" in asked


@pytest.mark.parametrize(
    ("script", "code", "exit_code"),
    [
        ("echo 'sacct: error: Invalid time specification (pos=0): x' >&2; exit 1", "bad_time", 2),
        ("echo 'sacct: error: no database' >&2; exit 1", "slurm_silent", 5),
        (None, "no_slurm", 5),
    ],
)
def test_what_cannot_be_answered(
    sacct: Fake, script: str | None, code: str, exit_code: ExitCode
) -> None:
    if script is not None:
        sacct(script)
    with pytest.raises(OomDoctorError) as caught:
        dead_jobs("x", (), everyone=False)
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
    assert jobs_with(["7"]) == []


def submission(folder: Path, line: str, job: str = "70_2") -> Submission:
    return Submission(job, "72", "train", "me", "gpu01", folder, line)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("sbatch -o out-%j.txt a.sh", "out-72.txt"),
        ("sbatch --output=%x_%A_%3a.log a.sh", "train_70_002.log"),
        ("sbatch --output %u-%N a.sh", "me-gpu01"),
        ("sbatch -omy.txt a.sh", "my.txt"),
        ("sbatch a.sh", "from-the-script-72"),
        ("sbatch b.sh", "slurm-70_2.out"),
        ("sbatch 'never closed", "slurm-70_2.out"),
        ("", "a-70_2.log"),
    ],
)
def test_the_output_of_a_job(tmp_path: Path, line: str, name: str) -> None:
    script = (
        "#!/bin/sh\n#SBATCH --mem=3  # -o no\n#SBATCH -o from-the-script-%j\ntrue\n#SBATCH -o b\n"
    )
    (tmp_path / "a.sh").write_text(script)
    (tmp_path / name).write_text("text")
    assert output_files(submission(tmp_path, line), Folders()) == (tmp_path / name,)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    assert output_files(submission(tmp_path, "sbatch -o gone a.sh"), Folders()) == ()
