"""Logs from files, compressed files and standard input."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.system.logs import looks_binary, read_chunks

TEXT = b"line of a log\n" * 100_000


def test_a_file_comes_in_chunks(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(TEXT)
    chunks = list(read_chunks(str(path)))
    assert b"".join(chunks) == TEXT
    assert max(map(len, chunks)) <= 1 << 18


def test_an_empty_file_has_no_chunks(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"")
    assert list(read_chunks(str(path))) == []


def test_gzip_is_told_by_its_bytes_and_has_members_and_padding(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(gzip.compress(TEXT) + gzip.compress(b"more") + b"\0" * 20)
    assert b"".join(read_chunks(str(path))) == TEXT + b"more"


def test_a_small_gzip_of_a_large_text_stays_in_chunks(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0" * (32 << 20)))
    assert max(map(len, read_chunks(str(path)))) <= 1 << 18


def test_a_cut_gzip_gives_what_it_has_and_a_damaged_one_is_told(tmp_path):
    path = tmp_path / "a.gz"
    packed = gzip.compress(os.urandom(50_000))
    path.write_bytes(packed[:-30_000])
    chunks = []
    with pytest.raises(OomDoctorError, match="ends too early"):
        for chunk in read_chunks(str(path)):
            chunks.append(chunk)
    assert 0 < len(b"".join(chunks)) < 50_000
    path.write_bytes(gzip.compress(TEXT)[:30] + b"\xff" * 200)
    with pytest.raises(OomDoctorError) as caught:
        list(read_chunks(str(path)))
    assert (caught.value.code, caught.value.exit_code) == ("log_damaged", ExitCode.USAGE)


def test_zstandard_that_gives_nothing_is_told(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.zst"
    path.write_bytes(zstandard.compress(TEXT)[:20])
    with pytest.raises(OomDoctorError, match="nothing in it"):
        list(read_chunks(str(path)))


def test_a_folder_and_a_closed_file_have_their_own_words(tmp_path, monkeypatch):
    with pytest.raises(OomDoctorError, match="is a folder") as caught:
        list(read_chunks(str(tmp_path)))
    assert f"oomdoctor explain {tmp_path}/*.out" in caught.value.hint
    (tmp_path / "output.log").touch()  # a case of `run` has no *.out
    with pytest.raises(OomDoctorError, match="is a folder") as caught:
        list(read_chunks(str(tmp_path)))
    assert f"oomdoctor explain {tmp_path}/*.log" in caught.value.hint
    path = tmp_path / "closed.log"
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(OomDoctorError, match="Permission denied") as caught:
        list(read_chunks(str(path)))
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("head", "binary"),
    [(b"", False), (b"step 1\tloss\r\n\x1b[31mred\x1b[0m\a", False),
     ("a b\n".encode("utf-16") * 50, False), (b"log" + b"\0" * 4000 + b"log", False),
     (bytes(range(256)), True), (b"\x80\x04\x95\x01\x02\x8c\x05abc" * 9, True)],
)  # fmt: skip
def test_binary_files_are_told_from_texts(head, binary):
    assert looks_binary(head) is binary


def test_zstandard_needs_its_library(tmp_path, monkeypatch):
    path = tmp_path / "a.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(OomDoctorError) as caught:
        list(read_chunks(str(path)))
    assert caught.value.code == "zstandard_missing"
    assert "zstd -dc" in caught.value.hint


def test_zstandard_is_read(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.log"
    path.write_bytes(zstandard.compress(TEXT) + zstandard.compress(b"more"))
    assert b"".join(read_chunks(str(path))) == TEXT + b"more"


def test_a_missing_file_is_a_fault_of_the_command_line(tmp_path):
    with pytest.raises(OomDoctorError) as caught:
        list(read_chunks(str(tmp_path / "none.log")))
    assert (caught.value.code, caught.value.exit_code) == ("log_unreadable", ExitCode.USAGE)


@pytest.mark.parametrize("path", [None, "-"])
def test_standard_input(path, monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, b"a")
    os.write(writer, b"bc\n")
    os.close(writer)
    with open(reader) as stdin:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", stdin)
        assert b"".join(read_chunks(path)) == b"abc\n"
