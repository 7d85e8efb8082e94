"""Progress: one line a rung in a pipe, one moving line on a terminal, nothing when quiet."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest

from oomdoctor.cli.streams.progress import Progress
from oomdoctor.records.config import Rung, TrainConfig
from oomdoctor.records.measurement import Measurement
from oomdoctor.records.result import Attempt, Failure
from oomdoctor.runs.events import SurveyEvent

FULL = Rung("full-bf16", TrainConfig())
LORA = Rung("lora-r16-bf16", TrainConfig(method="lora"))


def attempt(rung: Rung, size: int, outcome: str, **keys) -> Attempt:
    values = {"measurement": None, "oom": None, "failure": None, "reason": None, **keys}
    return Attempt(rung.config.with_micro_batch(size), outcome, elapsed_s=1.0, **values)


def measured(peak: int) -> Measurement:
    return Measurement(
        peak_allocated_bytes=peak, peak_reserved_bytes=None, peak_device_bytes=None,
        overhead_bytes=None, peak_rss_bytes=None, peak_phase="backward", phases={}, first_step={},
        steady={}, breakdown=None, allocation_retries=None, managed_bytes=0, timing=None,
        attention_kernel=None, trainable_parameters=1, parameters=1, losses=(),
        skipped_optimizer_steps=0, notes=(), versions={},
    )  # fmt: skip


def tries(rung: Rung, index: int, *ends: Attempt):
    for end in ends:
        size = int(end.config.micro_batch_size)
        place = {"micro_batch_size": size, "index": index, "total": 12}
        yield SurveyEvent("trying", rung, message="why", **place)
        yield SurveyEvent("phase", rung, phase="forward", **place)
        yield SurveyEvent("phase", rung, phase="backward", **place)
        yield SurveyEvent("tried", rung, attempt=end, **place)


EVENTS = [
    SurveyEvent("inspecting", message="m (local)"),
    SurveyEvent("note", message="2 finished tries reused"),
    *tries(
        FULL, 1,
        attempt(FULL, 1, "fits", measurement=measured(2**30)),
        attempt(FULL, 4, "oom"),
        attempt(FULL, 2, "fits", measurement=measured(2**31)),
    ),
    SurveyEvent("skipped", LORA, index=2, total=12, message="needs at least as much"),
    *tries(LORA, 3, attempt(LORA, 1, "failed", failure=Failure("x", "it broke\nbadly"))),
    *tries(LORA, 4, attempt(LORA, 1, "unsupported", reason="needs a GPU")),
    *tries(FULL, 12, attempt(FULL, 1, "oom", reason="ran but leaves 1 B")),
    SurveyEvent("done", total=12),
]  # fmt: skip


class Terminal(io.StringIO):
    """A stderr somebody looks at."""

    def isatty(self) -> bool:
        return True


def told(monkeypatch, stream: io.StringIO, quiet: bool = False) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(quiet=quiet) as progress:
        for event in EVENTS:
            progress.on_event(event)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def still_clock(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 7.0)


def test_a_pipe_gets_one_line_a_rung(monkeypatch):
    assert told(monkeypatch, io.StringIO()).splitlines() == [
        "inspecting m (local)",
        "2 finished tries reused",
        "[ 1/12] full-bf16: fits, micro-batch 2, peak 2.00 GiB  (3 attempts, 0.00 ms)",
        "[ 2/12] lora-r16-bf16: skipped: needs at least as much",
        "[ 3/12] lora-r16-bf16: failed at micro-batch 1: it broke  (0.00 ms)",
        "[ 4/12] lora-r16-bf16: not supported: needs a GPU  (0.00 ms)",
        "[12/12] full-bf16: out of memory at micro-batch 1: ran but leaves 1 B  (0.00 ms)",
    ]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_survey_says_that_it_simulates_first(monkeypatch, stream):
    """Each simulation that ends leaves the moving line; a pipe gets one line for all of them."""
    first, second = (Rung(name, TrainConfig()) for name in ("first", "second"))
    monkeypatch.setattr(sys, "stderr", stream())
    with Progress(quiet=False) as progress:
        for event in (
            SurveyEvent("simulating", first, total=2),
            SurveyEvent("simulating", second, total=2),
            SurveyEvent("simulated", first, index=1, total=2),
        ):
            progress.on_event(event)
        now = progress._now
    assert now == "simulating second  [1/2 done]"
    said = "simulating 2 configurations\n" if stream is io.StringIO else ""
    assert stream is Terminal or sys.stderr.getvalue() == said


def drawn(text: str) -> list[str]:
    """What was drawn on a terminal between the moves of its cursor, line by line."""
    return re.split(r"\r|\n|\x1b\[[?0-9]*[A-Za-z]", text)


def test_a_terminal_gets_the_phase_on_a_moving_line(monkeypatch):
    text = told(monkeypatch, Terminal())
    assert "[ 1/12] full-bf16  micro-batch 4  backward  0.00 ms" in drawn(text)
    stays = re.findall(r"\r\x1b\[2K([^\r\n]*)\n", text)
    assert "[ 1/12] full-bf16: fits, micro-batch 2, peak 2.00 GiB  (3 attempts, 0.00 ms)" in stays
    assert len([line for line in stays if line]) == 6
    assert text.endswith("\r\x1b[1A\x1b[2K")  # the moving line is gone


def test_a_moving_line_is_no_wider_than_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    moving = [line for line in drawn(told(monkeypatch, Terminal())) if "full-bf16  m" in line]
    assert moving
    assert max(map(len, moving)) == 20


def test_a_line_that_stays_is_never_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    whole = "[ 1/12] full-bf16: fits, micro-batch 2, peak 2.00 GiB  (3 attempts, 0.00 ms)"
    assert whole in drawn(told(monkeypatch, Terminal()))


def test_a_dumb_terminal_gets_whole_lines_only(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in told(monkeypatch, Terminal())


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_quiet_is_quiet(monkeypatch, stream):
    assert told(monkeypatch, stream(), quiet=True) == ""


def test_what_was_tried_is_told_when_the_survey_breaks_off(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(KeyboardInterrupt), Progress(quiet=False) as progress:
        for event in EVENTS[2:6]:
            progress.on_event(event)
        raise KeyboardInterrupt
    assert stream.getvalue().startswith("[ 1/12] full-bf16: fits, micro-batch 1")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stderr_that_nobody_reads_ends_nothing(monkeypatch, terminal):
    class Unread(io.StringIO):
        def isatty(self) -> bool:
            return terminal

        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Unread())
    with Progress(quiet=False) as progress:
        for event in EVENTS:
            progress.on_event(event)


def test_the_moving_line_moves_while_nothing_happens(monkeypatch):
    import time

    clock = iter(range(7, 10**6))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("oomdoctor.cli.streams.moving_line.REFRESHES_PER_S", 100.0)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(quiet=False) as progress:
        for event in EVENTS[2:4]:
            progress.on_event(event)
        before = stream.getvalue().count("forward")
        deadline = time.perf_counter() + 5
        while stream.getvalue().count("forward") < before + 3:
            assert time.perf_counter() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_rich_is_loaded_for_a_terminal_only(kind):
    code = (
        "import io, sys\n"
        f"class Stream(io.StringIO):\n    def isatty(self): return {kind is Terminal}\n"
        "error, sys.stderr = sys.stderr, Stream()\n"
        "from oomdoctor.cli.streams.progress import Progress\n"
        "with Progress(quiet=False): print('rich.live' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{kind is Terminal}\n"
