"""`watch` on the command line: the page, JSON, exit codes, and a page that is renewed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time

import pytest
from live_logs import gpu, live_log

from oomdoctor.records.codec import from_json
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.watch import LiveEvent


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomdoctor.commands.watch.list_gpus", lambda: (gpu(os.getpid(), 2214),))


def test_the_page_says_when_memory_is_full(cli, one_gpu) -> None:
    live_log(events=(LiveEvent("warning", 18, 36.0, "memory grows"),))
    ended = cli("watch")
    assert (ended.code, ended.err) == (0, "")
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert lines[0].startswith("GPU 0: NVIDIA A100-SXM4-40GB, 33.0 GiB of 40.0 GiB in use (82%)")
    assert f"{os.getpid()} python 30.0 GiB 75% asked for" in lines
    assert f"Job {os.getpid()}: running" in lines or any("no step finished" in x for x in lines)
    assert "Step 40 of 500, 2.00 s each" in lines
    assert "Trend grows by 100 MiB per step; full at about step 92, in about 1 min 44 s" in lines
    assert "Warning step 18: memory grows" in lines


def test_json_has_the_numbers(cli, one_gpu) -> None:
    live_log()
    ended = cli("watch", str(os.getpid()), "--json")
    report = from_json(Report, json.loads(ended.out))
    assert report.command == "watch" and report.status == "ok"
    assert report.watch.asked == str(os.getpid())
    assert report.watch.trainings[0].trend.full_at_step == 92
    assert report.watch.gpus[0].processes[0].used_bytes == 30 << 30


def test_many_ranks_show_the_fullest(cli) -> None:
    for rank, pid in enumerate((os.getpid(), os.getppid(), 1)):
        live_log(pid=pid, rank=rank, world=3, leak=0, peak=(30 + rank) << 30)
    page = cli("watch").out
    assert "rank 2 of 3" in page and "rank 0 of 3" not in page
    assert "2 more ranks are not as full" in page
    assert "other processes on them are not known" in page
    assert "rank 0 of 3" in cli("watch", "--verbose").out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--gpu", "0"), 5),
        (("latest",), 5),
        (("latest", "--gpu", "0"), 2),
        (("nothing",), 2),
        (("--gpu", "x"), 2),
    ],
)
def test_exit_codes_without_a_gpu(cli, monkeypatch, words, code) -> None:
    monkeypatch.setattr("oomdoctor.commands.watch.list_gpus", lambda: ())
    ended = cli("watch", *words)
    assert (ended.code, ended.out) == (code, "")
    assert "error: " in ended.err and "hint:  " in ended.err


def test_hostile_words_of_a_command_stay_on_their_line(cli) -> None:
    path = live_log()
    path.write_text(path.read_text().replace("train.py", r"x\u001b[31m\ny"))
    assert "\x1b" not in cli("watch").out


def test_a_terminal_is_renewed_until_the_end() -> None:
    path = live_log()
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "oomdoctor", "watch"], stdout=child, stderr=child
    )
    os.close(child)
    text = b""
    while b"of 500" not in text:
        text += os.read(parent, 10_000)
    with path.open("a") as file:
        file.write(json.dumps({"event": "end", "step": 40, "time_s": 81.0, "message": ""}) + "\n")
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            text += os.read(parent, 10_000)
        except OSError:
            break
    assert process.wait(timeout=60) == 0
    assert b"A\x1b[J" in text and b": ended" in text
