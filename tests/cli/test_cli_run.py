"""`run` as a wrapper: its errors, and that a command behaves as it would without it.

The emulation itself is replaced here; tests/emulated/test_run.py has the real one.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from oomdoctor.emulator import interpreter
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "oomdoctor" / "data" / "report.schema.json").read_text()
)
# A process in which every interpreter can be emulated, and no library has to be built.
WRAPPER = """
import sys
from contextlib import contextmanager
from oomdoctor.cli.main import run
from oomdoctor.commands.run import run_watched as watched
@contextmanager
def emulating(*_):
    yield {"EMULATION": "here"}
watched.emulating = emulating
watched.check_possible = lambda *_: None
from oomdoctor.commands.devices import emulated
emulated.without_values = lambda python: None
if "--break" in sys.argv:
    sys.argv.remove("--break")
    from oomdoctor.commands.run import report
    report.read_processes = lambda folder: 1 / 0
sys.exit(run(["run", "--emulate", "T4", *sys.argv[1:]]))
"""


# One that has a GPU, and where the kernel kills a process while the command runs.
REAL = """
import sys
from itertools import count
from oomdoctor.cli.main import run
from oomdoctor.records.job.machine import Gpu
from oomdoctor.commands.run import seen_outside
from oomdoctor.commands.run import run_watched as watched
gpu = Gpu(0, "GPU-1", "NVIDIA T4", 15 << 30, 15 << 30, "7.5", ())
watched.list_gpus = lambda: (gpu,)
kills = count()
seen_outside.oom_kills_here = lambda: 7 + min(1, next(kills))
sys.exit(run(["run", *sys.argv[1:]]))
"""


def _wrapped(*arguments: str, **options):
    return subprocess.run(
        [sys.executable, "-c", WRAPPER, *arguments], capture_output=True, text=True, **options
    )


def test_streams_pass_untouched_and_stay_apart():
    code = "import os; os.write(1, b'out \\xff\\x1b[1m\\r'); os.write(2, b'error\\n')"
    ended = subprocess.run(
        [sys.executable, "-c", WRAPPER, "--", sys.executable, "-c", code], capture_output=True
    )
    assert ended.stdout == b"out \xff\x1b[1m\r"
    first, *rest = ended.stderr.split(b"\n")
    assert first.startswith(b"oomdoctor ") and b"emulating Tesla T4" in first
    assert rest[0] == b"error"


def test_quiet_prints_nothing_of_ours():
    ended = _wrapped("--quiet", "--", "sh", "-c", "echo out; echo error >&2")
    assert (ended.stdout, ended.stderr) == ("out\n", "error\n")


def test_one_file_for_both_streams_keeps_their_order(tmp_path):
    log = tmp_path / "log"
    code = "for i in 1 2 3 4 5 6 7 8 9; do echo out$i; echo error$i >&2; done"
    with log.open("w") as file:
        subprocess.run(
            [sys.executable, "-c", WRAPPER, "--quiet", "--", "sh", "-c", code],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    assert log.read_text().split() == [f"{w}{i}" for i in range(1, 10) for w in ("out", "error")]


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_that_of_the_command(script, code):
    assert _wrapped("--quiet", "--", "sh", "-c", script).returncode == code


def test_the_exit_code_outlives_a_summary_that_fails(tmp_path):
    path = tmp_path / "report.json"
    environment = {**os.environ, "OOMDOCTOR_DEBUG": "1"}
    words = ("--break", "--report", str(path), "--", "sh", "-c", "exit 7")
    ended = _wrapped(*words, env=environment)
    assert ended.returncode == 7
    assert "in read_processes" in ended.stderr or "in <lambda>" in ended.stderr
    assert "could not be made (ZeroDivisionError: division by zero)" in " ".join(
        ended.stderr.split()
    )
    document = json.loads(path.read_text())
    jsonschema.validate(document, SCHEMA)
    assert (document["status"], document["exit_code"]) == ("error", 7)
    assert [error["code"] for error in document["errors"]] == ["summary_failed"]


def test_a_report_that_cannot_be_written_changes_no_exit_code(cli, monkeypatch, watched, tmp_path):
    def fails(path, text):
        raise OomDoctorError("output_failed", "cannot write it: disk full")

    monkeypatch.setattr("oomdoctor.cli.streams.output.write_file", fails)
    ended = cli("run", "--emulate", "T4", "--report", str(tmp_path / "r.json"), "--", "true")
    assert ended.code == 0 and "disk full" in ended.err


def test_the_command_reads_our_standard_input():
    assert _wrapped("--quiet", "--", "cat", input="typed").stdout == "typed"


def test_the_environment_of_the_emulation_reaches_the_command():
    code = "echo $EMULATION $OOMDOCTOR_EMULATED_VALUES $OOMDOCTOR_ALONE"
    options = ("--quiet", "--values", "2.5", "--ranks", "1")
    assert _wrapped(*options, "--", "sh", "-c", code).stdout == "here 2.5 1\n"


def test_no_folder_is_left(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    _wrapped("--quiet", "--", "true", env=environment)
    assert list((tmp_path / "oomdoctor" / "sessions").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_passed_on_and_the_summary_is_still_printed(number, tmp_path):
    report = tmp_path / "report.json"
    code = (
        "import os, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (os.write(1, b'got it'), sys.exit(5)))\n"
        "os.write(1, b'ready\\n')\n"
        "for _ in range(300): time.sleep(0.1)\n"  # a signal just before a sleep does not end it
    )
    process = subprocess.Popen(
        [sys.executable, "-c", WRAPPER, "--report", str(report), "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, error = process.communicate(timeout=20)
    assert (out, process.returncode) == ("got it", 5)
    assert "exit code 5" in error
    status = json.loads(report.read_text())["status"]
    assert status == ("error" if number == signal.SIGUSR1 else "interrupted")


def test_a_signal_that_interrupts_no_system_call_is_passed_on():
    """As one just before we wait: another thread gets it, so that our waiting goes on."""
    elsewhere = (
        "import signal, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
    )
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])\n"
        "os.write(1, b'ready\\n')\n"
        "for _ in range(300): time.sleep(0.1)\n"
    )
    words = [sys.executable, "-c", elsewhere + WRAPPER, "--quiet", "--", sys.executable, "-c", code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=20) == 5


def test_in_a_terminal_the_command_has_one_too():
    """Its output is what it prints to a terminal, and Ctrl-C reaches it."""
    code = (
        "import os, sys, time\n"
        "try:\n"
        " print(*map(os.isatty, (0, 1, 2)), os.get_terminal_size(1).columns, flush=True)\n"
        " time.sleep(30)\n"
        "except KeyboardInterrupt:\n print('interrupted', flush=True)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = "80"
        words = [sys.executable, "-c", WRAPPER, "--quiet", "--", sys.executable, "-c", code]
        os.execv(words[0], words)
    os.set_blocking(terminal, False)
    seen = _read_until(terminal, "True True True")
    os.write(terminal, b"\x03")
    seen += _read_until(terminal, "interrupted")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert seen.count("\r\n") == 2 and "\r\r\n" not in seen


def _read_until(terminal: int, word: str) -> str:
    seen, end = "", time.monotonic() + 20
    while word not in seen or not seen.endswith("\n"):
        assert time.monotonic() < end, seen
        try:
            seen += os.read(terminal, 4096).decode()
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            break
    return seen


def test_a_reader_that_goes_ends_the_command():
    line = f"{sys.executable} -c '{WRAPPER}' --quiet -- yes | head -n 1"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
    assert ended.stdout == "y\n"


def test_a_report_without_a_gpu_says_so_and_fits_the_schema(tmp_path):
    report = tmp_path / "report.json"
    ended = _wrapped("--report", str(report), "--", "true")
    document = json.loads(report.read_text())
    jsonschema.validate(document, SCHEMA)
    assert loads(Report, report.read_text()).ranks == ()
    assert document["command_line"] == ["true"] and document["exit_code_of_command"] == 0
    assert document["device"]["kind"] == "emulated" and document["device"]["gpus"] == 1
    assert [warning["code"] for warning in document["warnings"]] == ["gpu_unused"]
    assert "no process of the command used the GPU" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--emulate", "T4"], "there is no command to run", "-- python train.py"),
        (["--emulate", "T4", "--"], "there is no command to run", "-- python train.py"),
        (
            ["--emulate", "T4", "python", "x.py", "--lr", "3"],
            "put -- before the command to run",
            "oomdoctor run --emulate T4 -- python x.py --lr 3",
        ),
        (["--ranks", "1", "--", "true"], "--ranks: 1 needs --emulate", "run --help"),
        (["--values", "3", "--", "true"], "--values: needs --emulate", "run --help"),
        (["--case", "/proc", "--", "true"], "--case: /proc is not empty", "run --help"),
        (["--emulate", "RTX 4900", "--", "true"], "did you mean", "run --help"),
        (["--emulate", "65xT4", "--", "true"], "from 1 to 64 devices", "run --help"),
        (["--emulate", "MI300X", "--", "true"], "not an NVIDIA card", "run --help"),
        (["--emulate", "T4", "--steps", "few", "--", "true"], "--steps: 'few'", "run --help"),
        (
            ["--emulate", "T4", "--ranks", "2", "--", "true"],
            "--ranks: '2' is not one of all, 1",
            "run --help",
        ),
        (
            ["--emulate", "T4", "--values", "x", "--", "true"],
            "--values: is max, half or a number",
            "run --help",
        ),
        (["--emulate", "T4", "--report", "/no/x", "--", "true"], "--report: the folder", None),
        (["--emulate", "T4", "--", "no-such-program"], "no program 'no-such-program'", "PATH"),
        (["--emulate", "T4", "--python", "nope", "--", "true"], "--python: there is no", None),
    ],
)
def test_errors_say_what_to_type(cli, arguments, error, hint):
    ended = cli("run", *arguments)
    assert ended.code == 2
    assert error in ended.err
    assert hint is None or hint in ended.err


def test_a_script_without_python_before_it(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    ended = cli("run", "--emulate", "T4", "--", "train.py")
    assert ended.code == 2 and "put python before it: -- python train.py" in ended.err


def test_without_a_gpu_the_line_that_emulates_one(cli, monkeypatch):
    monkeypatch.setattr("oomdoctor.commands.run.run_watched.list_gpus", lambda: ())
    monkeypatch.setattr("oomdoctor.commands.run.run_watched.may_have_gpu", lambda: False)
    monkeypatch.setattr("oomdoctor.commands.run.run_watched._ANOTHER_DRIVER", Path("/no/such"))
    ended = cli("run", "--", "true", "a b")
    assert ended.code == 5
    assert "oomdoctor run --emulate 'RTX 4090' -- true 'a b'" in " ".join(ended.err.split())


def test_a_kill_for_lack_of_host_memory_leaves_a_case(tmp_path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HF_TOKEN": "planted-token-01"}
    words = ["--case", str(tmp_path / "case"), "--", "sh", "-c", 'echo "$HF_TOKEN"; kill -9 $$']
    ended = subprocess.run(
        [sys.executable, "-c", REAL, *words], env=environment, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (137, "planted-token-01\n")
    assert "Out of host memory" in ended.stderr and "watching the command on" in ended.stderr
    report = loads(Report, (tmp_path / "case" / "case.json").read_text())
    assert (report.status, report.diagnoses[0].resource) == ("no", "host")
    assert report.host is not None and report.host.kernel_kills == 1
    assert not [
        path.name
        for path in (tmp_path / "case").iterdir()
        if b"planted-token-01" in path.read_bytes()
    ]


def test_what_ends_well_on_a_real_gpu_leaves_no_trace(tmp_path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    words = [sys.executable, "-c", REAL.replace("7 + ", ""), "--", "true"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "no process of the command used the GPU" in " ".join(ended.stderr.split())
    assert [path.name for path in tmp_path.rglob("*")] == ["cache", "oomdoctor", "sessions"]


def test_an_interpreter_without_a_cuda_build(cli, monkeypatch):
    ours = replace(interpreter.ask(Path(sys.executable)), cuda=None)
    monkeypatch.setattr(interpreter, "ask", lambda _: ours)
    ended = cli("run", "--emulate", "T4", "--python", sys.executable, "--", "true")
    assert ended.code == 5
    assert "is not a CUDA build" in ended.err and "pip install" in ended.err
