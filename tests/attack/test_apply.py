"""`explain --apply --write` changes the lines it says and loses nothing of a user's file."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from oomdoctor.commands.explain import applied
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.user_training import AppliedRemedy, ChangedLine
from oomdoctor.system.regular_files import plain_text, with_line_ends

SETTINGS = "learning_rate: 1e-4\nper_device_train_batch_size: 8\nmax_length: 2048\n"


def change_of(path: Path) -> AppliedRemedy:
    line = ChangedLine(str(path), "per_device_train_batch_size", "8", "2", 2)
    return AppliedRemedy(str(path), 1, "smaller", {}, (line,), "", ())


def save(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        SETTINGS.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + SETTINGS.encode(),
        SETTINGS.replace("\n", "\r\n", 1).encode(),
        (SETTINGS + "note: 'a\rb'\n").encode(),
        (SETTINGS + "# caf\u00e9 \u2028 \x85\n").encode(),
    ],
)
def test_other_bytes_stay(content: bytes, tmp_path: Path) -> None:
    """Each line end became a line feed, and a byte order mark went."""
    path = tmp_path / "train.yaml"
    path.write_bytes(content)
    path.chmod(0o640)
    done = applied.write(change_of(path), save)
    assert path.read_bytes() == content.replace(b"size: 8", b"size: 2")
    assert Path(str(done.backup)).read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_in_the_place_of_the_copy_is_not_followed(tmp_path: Path) -> None:
    """The copy was written to where it led."""
    path, outside = tmp_path / "train.yaml", tmp_path / "outside"
    path.write_text(SETTINGS)
    (tmp_path / "train.yaml.bak").symlink_to(outside)
    done = applied.write(change_of(path), save)
    assert done.backup == f"{path}.bak.1"
    assert not outside.exists()


def test_the_file_behind_a_link_is_changed_and_the_link_stays(tmp_path: Path) -> None:
    path, link = tmp_path / "train.yaml", tmp_path / "link.yaml"
    path.write_text(SETTINGS)
    link.symlink_to(path)
    done = applied.write(change_of(link), save)
    assert link.is_symlink()
    assert "size: 2" in path.read_text()
    assert Path(str(done.backup)).read_text() == SETTINGS


def test_many_copies_stay(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(SETTINGS)
    for number in range(1, 1200):
        (tmp_path / f"train.yaml.bak.{number}").touch()
    (tmp_path / "train.yaml.bak").touch()
    assert str(applied.write(change_of(path), save).backup).endswith(".bak.1200")


def test_a_file_that_changed_meanwhile_stays(tmp_path: Path) -> None:
    """It was an internal error, and a copy was left."""
    path = tmp_path / "train.yaml"
    path.write_text("per_device_train_batch_size: &size 8\nother: *size\n")
    with pytest.raises(OomDoctorError, match="changed meanwhile"):
        applied.write(change_of(path), save)
    assert [one.name for one in tmp_path.iterdir()] == ["train.yaml"]


def test_a_disk_that_is_full_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(SETTINGS)

    def full(path: Path, content: bytes) -> None:
        raise OomDoctorError("output_failed", "no space")

    with pytest.raises(OomDoctorError, match="no space"):
        applied.write(change_of(path), full)
    assert path.read_text() == SETTINGS
    assert [one.name for one in tmp_path.iterdir()] == ["train.yaml"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_survive_a_change_anywhere(end: str) -> None:
    content = end.join(["a", "b", "", "b", "c"]).encode()
    assert with_line_ends(content, plain_text(content)) == content
    assert with_line_ends(content, "new\n" + plain_text(content)) == b"new" + end.encode() + content
    assert with_line_ends(content, "") == b""


def test_a_device_is_no_file_of_settings(tmp_path: Path) -> None:
    """/dev/zero has no size, and no end: it took all memory."""
    log = tmp_path / "log.txt"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    words = [sys.executable, "-m", "oomdoctor", "explain", str(log), "--config", "/dev/zero"]
    limit = 4 << 30
    done = subprocess.run(
        [*words, "--json"],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        check=False,
    )
    assert done.returncode == 2
    assert "larger than 8 MiB" in json.loads(done.stdout)["errors"][0]["message"]
