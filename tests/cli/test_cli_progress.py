"""Progress: one line a rung in a pipe, one moving line on a terminal, nothing when quiet."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest

from oomdoctor.cli.streams import output
from oomdoctor.cli.streams.moving_line import MovingLine, Status, line_of, table_lines
from oomdoctor.cli.streams.progress import Progress, summary
from oomdoctor.commands.events import SurveyEvent
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.result import Attempt, Failure
from oomdoctor.render.text import columns_of

FULL = Rung("full-bf16", TrainConfig())
LORA = Rung("lora-r16", TrainConfig(method="lora"))


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
        "[ 2/12] lora-r16: skipped: needs at least as much",
        "[ 3/12] lora-r16: failed at micro-batch 1: it broke  (0.00 ms)",
        "[ 4/12] lora-r16: not supported: needs a GPU  (0.00 ms)",
        "[12/12] full-bf16: out of memory at micro-batch 1: ran but leaves 1 B  (0.00 ms)",
    ]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_survey_says_that_it_simulates_first(monkeypatch, stream):
    """Each simulation that ends leaves the moving line; a pipe gets one line for all of them."""
    first, second = (Rung(name, TrainConfig()) for name in ("first", "second"))
    monkeypatch.setattr(sys, "stderr", stream())
    with Progress(quiet=False) as progress:
        for event in (
            SurveyEvent("simulating", first, total=3),
            SurveyEvent("simulating", second, total=3),
            SurveyEvent("simulated", first, index=1, total=3),
        ):
            progress.on_event(event)
        now = progress._moving_text(100)
    assert now == "simulating second  2 simulations left  0 s"
    said = "simulating 3 configurations\n" if stream is io.StringIO else ""
    assert stream is Terminal or sys.stderr.getvalue() == said


def test_one_configuration_is_not_several(capsys):
    with Progress(quiet=False) as progress:
        progress.on_event(SurveyEvent("simulating", Rung("first", TrainConfig()), total=1))
    assert capsys.readouterr().err.splitlines()[-1] == "simulating 1 configuration"


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_the_estimate_comes_from_finished_simulations(monkeypatch):
    """Two at a time, 20 s each: after two have ended, eight more take 80 s."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    rungs = [Rung(f"r{i}", TrainConfig()) for i in range(10)]
    texts = []
    with Progress(quiet=False) as progress:
        for pair in range(5):
            for rung in rungs[2 * pair : 2 * pair + 2]:
                progress.on_event(SurveyEvent("simulating", rung, total=10))
            texts.append(progress._moving_text(100))
            clock.now += 20
            for done, rung in enumerate(rungs[2 * pair : 2 * pair + 2], 2 * pair + 1):
                progress.on_event(SurveyEvent("predicted", rung, index=done, total=10))
        texts.append(progress._moving_text(100))
    assert texts == [
        "simulating r0, r1  10 simulations left  0 s",
        "simulating r2, r3  8 simulations left  20 s  about 1 min left",
        "simulating r4, r5  6 simulations left  40 s  about 1 min left",
        "simulating r6, r7  4 simulations left  1 min 00 s  about 40 s left",
        "simulating r8, r9  2 simulations left  1 min 20 s  about 20 s left",
        "finishing  1 min 40 s",
    ]


def test_a_search_for_changes_is_named_while_it_runs(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress(quiet=False) as progress:
        progress.on_event(SurveyEvent("searching"))
        assert progress._moving_text(80).startswith("looking for changes that help  0 s")


def test_a_row_of_a_terminal_says_the_reason_whole(monkeypatch):
    """At 80 columns the words of the outcome would cut off by how much it is short."""
    reason = "needs 174 GiB, short by 151 GiB"
    tried = attempt(FULL, 1, "oom", reason=reason)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(quiet=False) as progress:
        progress.on_event(SurveyEvent("bounded", FULL, message="needs at least 122 GiB"))
        progress.on_event(SurveyEvent("simulating", FULL, total=2))
        progress.on_event(SurveyEvent("predicted", FULL, index=1, total=2, attempts=(tried,)))
        assert f"full-bf16  {reason}" in progress._moving_text(80).splitlines()


def test_a_missing_package_is_not_called_unsupported():
    reason = "needs Liger kernels: pip install liger-kernel"
    assert summary([attempt(FULL, 1, "unsupported", reason=reason)]) == reason


def test_what_was_known_before_is_no_evidence(monkeypatch):
    """Answers that come at once say nothing about those that have to be worked out."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress(quiet=False) as progress:
        for number in range(1, 5):
            rung = Rung(f"r{number}", TrainConfig())
            progress.on_event(SurveyEvent("simulating", rung, total=10))
            progress.on_event(SurveyEvent("predicted", rung, index=number, total=10))
        progress.on_event(SurveyEvent("simulating", FULL, total=10))
        clock.now = 5.0
        text = progress._moving_text(100)
    assert text == "simulating full-bf16  6 simulations left  5 s"


def test_a_rung_that_takes_longer_than_the_others_moves_the_estimate(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    rungs = [Rung(f"r{i}", TrainConfig()) for i in range(3)]
    with Progress(quiet=False) as progress:
        for number, rung in enumerate(rungs, 1):
            place = {"micro_batch_size": 1, "index": number, "total": 3, "left": 3 - number}
            progress.on_event(SurveyEvent("trying", rung, **place))
            if number < 3:
                clock.now += 60
                progress.on_event(
                    SurveyEvent("tried", rung, attempt=attempt(rung, 1, "fits"), **place)
                )
        assert progress._moving_text(100) == (
            "[3/3] r2  micro-batch 1  starting  1 config left  2 min 00 s  about 1 min left"
        )
        clock.now += 600
        assert "about 3 min left" in progress._moving_text(100)


def test_the_estimate_of_a_survey_says_that_measuring_follows(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    rungs = [Rung(f"r{i}", TrainConfig()) for i in range(4)]
    with Progress(quiet=False) as progress:
        for done, rung in enumerate(rungs[:2], 1):
            progress.on_event(SurveyEvent("simulating", rung, total=4))
            clock.now += 30
            progress.on_event(SurveyEvent("simulated", rung, index=done, total=4))
        text = progress._moving_text(100)
    assert text.endswith("2 simulations left  1 min 00 s  about 1 min until measuring")


@pytest.mark.parametrize("width", range(8, 200, 3))
@pytest.mark.parametrize("name", ["full-bf16", "qlora-nf4-r16+ckpt+paged8bit, " * 3, "模型" * 30])
def test_a_status_never_wraps(width, name):
    status = Status("[ 4/12]", name, ("micro-batch 4", "backward"), left=8)
    line = line_of(status, 4000.0, 130.0, width)
    assert columns_of(line) <= width
    if width >= 40:
        assert "8 left" in line or "8 configs left" in line
        assert "2 min left" in line
        assert name[:4] in line
    if width >= 110:
        assert "backward  8 configs left  1 h 06 min  about 2 min left" in line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.0, "10 s"),
        (44.0, "40 s"),
        (54.0, "50 s"),
        (56.0, "1 min"),
        (200.0, "3 min"),
        (9000.0, "2 h"),
    ],
)
def test_an_estimate_is_no_finer_than_it_is_good(seconds, text):
    status = Status("simulating", "a", (), unit="simulation", left=1)
    assert line_of(status, 0.0, seconds, 100).endswith(f"about {text} left")


def drawn(text: str) -> list[str]:
    """What was drawn on a terminal between the moves of its cursor, line by line."""
    return re.split(r"\r|\n|\x1b\[[?0-9]*[A-Za-z]", text)


def test_a_terminal_gets_the_phase_on_a_moving_line(monkeypatch):
    text = told(monkeypatch, Terminal())
    assert "[ 1/12] full-bf16  micro-batch 4  backward  0 s" in drawn(text)
    stays = re.findall(r"\r\x1b\[2K([^\r\n]*)\n", text)
    assert "[ 1/12] full-bf16: fits, micro-batch 2, peak 2.00 GiB  (3 attempts, 0.00 ms)" in stays
    assert len([line for line in stays if line]) == 6
    assert text.endswith("\r\x1b[2K")  # the moving line is gone
    assert "\x1b[?25l" not in text  # the cursor stays, whichever way the process ends


def test_the_answer_takes_the_place_of_progress(monkeypatch):
    """Only on the same terminal, and only of what is in sight."""
    ends = "\r\x1b[2K\x1b[6A\x1b[J"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert told(monkeypatch, Terminal()).endswith(ends)
    monkeypatch.setenv("COLUMNS", "40")
    assert told(monkeypatch, Terminal()).endswith("\x1b[11A\x1b[J")
    monkeypatch.setenv("COLUMNS", "10")  # more lines than the terminal has
    assert told(monkeypatch, Terminal()).endswith("\r\x1b[2K")
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert told(monkeypatch, Terminal()).endswith("\r\x1b[2K")


PLAN = [
    SurveyEvent("inspecting", message="m (local)"),
    SurveyEvent("bounded", FULL, message="needs at least 61.8 GiB"),
    SurveyEvent("bounded", LORA, message="needs at least 7.00 GiB"),
    SurveyEvent("simulating", LORA, total=2),
    SurveyEvent(
        "predicted", LORA, index=1, total=2,
        attempts=(attempt(LORA, 1, "fits", measurement=measured(2**33)),),
    ),
    SurveyEvent("predicted", FULL, index=2, total=2, attempts=(attempt(FULL, 1, "oom"),)),
]  # fmt: skip


def plan_told(monkeypatch, stream, last=None) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(quiet=False) as progress:
        for event in PLAN[:last]:
            progress.on_event(event)
    return stream.getvalue()


def test_a_plan_has_its_lower_bounds_at_once_and_then_its_results(monkeypatch):
    """Each row keeps its place, and the answer takes the place of all of them."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    lines = drawn(plan_told(monkeypatch, Terminal(), last=3))
    assert "full-bf16  needs at least 61.8 GiB" in lines
    assert "lora-r16   needs at least 7.00 GiB" in lines
    text = plan_told(monkeypatch, Terminal(), last=5)
    shown = text[text.rindex("full-bf16  needs at least 61.8 GiB") :]
    assert "lora-r16   fits, micro-batch 1, peak 8.00 GiB" in drawn(shown)
    assert text.count("\x1b[2A\x1b[J") >= 2  # the rows are drawn again, not below each other
    assert text.endswith("\r\x1b[2K\x1b[2A\x1b[J")


def test_a_search_does_not_fill_the_screen(monkeypatch):
    events = [
        SurveyEvent("predicted", FULL, index=number, total=98, attempts=(attempt(FULL, 1, "oom"),))
        for number in range(1, 31)
    ]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(quiet=False) as progress:
        for event in events:
            progress.on_event(event)
        shown = terminal.getvalue()
    last = shown[shown.rindex("[30/98] full-bf16") - 2000 :]
    assert "[23/98] full-bf16" in last and "full-bf16: " not in shown  # no line that stays
    assert "\x1b[8A\x1b[J" in last and "\x1b[9A" not in shown
    assert terminal.getvalue().endswith("\r\x1b[2K\x1b[8A\x1b[J")


def test_where_the_answer_goes_elsewhere_the_results_stay(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    stays = plan_told(monkeypatch, Terminal(), last=5).split("\x1b[2A\x1b[J")[-1]
    assert "lora-r16: fits, micro-batch 1, peak 8.00 GiB\n" in stays
    assert "full-bf16" not in stays  # its simulation did not end


def test_lower_bounds_are_not_for_a_pipe(monkeypatch):
    text = plan_told(monkeypatch, io.StringIO())
    assert "at least" not in text
    assert "[1/2] lora-r16: fits, micro-batch 1, peak 8.00 GiB" in text.splitlines()


def test_a_low_terminal_shows_the_last_rows(monkeypatch):
    monkeypatch.setattr(
        "oomdoctor.cli.streams.moving_line._size", lambda: os.terminal_size((80, 3))
    )
    assert table_lines({"a": "1", "bb": "2"}, 80) == ["bb  2"]


def test_a_moving_line_is_no_wider_than_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    lines = drawn(told(monkeypatch, Terminal()))
    moving = [line for line in lines if line.startswith("full-bf16  ")]
    assert moving
    assert max(map(len, moving)) <= 17  # and the cursor and ^C have room


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


def test_progress_needs_no_rich():
    """It is on screen before rich would be loaded, which old versions of typer do themselves."""
    code = (
        "import io, sys, typer\n"
        "by_typer = 'rich.console' in sys.modules\n"
        "class Stream(io.StringIO):\n    def isatty(self): return True\n"
        "error, sys.stderr = sys.stderr, Stream()\n"
        "from oomdoctor.cli.streams.progress import Progress\n"
        "with Progress(quiet=False): print('rich.console' in sys.modules and not by_typer)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_terminal_that_became_narrower_is_cleared(monkeypatch):
    """The terminal has wrapped the line, so the rows above the cursor are removed too."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "100")
    line = MovingLine(lambda width: "x" * width)
    line.refresh()
    monkeypatch.setenv("COLUMNS", "40")
    line.refresh()
    assert stream.getvalue().endswith("\r\x1b[2K\x1b[2A\x1b[J" + "x" * 37)
    line.refresh()
    assert stream.getvalue().endswith("x" * 37 + "\r\x1b[2K" + "x" * 37)
    line.stop()


@pytest.mark.parametrize("quiet", [True, False])
def test_a_signal_takes_the_place_of_the_moving_line(quiet):
    code = (
        "import io, os, signal, sys\n"
        "from oomdoctor.cli.streams.carry_out import stop_on_signals\n"
        f"with stop_on_signals(moving={not quiet}) as stop:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print(int(stop()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"143\n"
    start = b"\n" if quiet else b"\r\x1b[2K"
    assert done.stderr.startswith(start + b"stopping: the results so far")


@pytest.mark.parametrize(
    ("line", "painted"),
    [
        ("[1/4] a: fits, micro-batch 2", "[1/4] a: \x1b[32mfits\x1b[0m, micro-batch 2"),
        ("[2/4] b: out of memory at", "[2/4] b: \x1b[31mout of memory\x1b[0m at"),
        ("[3/4] c: skipped: too big", "[3/4] c: \x1b[33mskipped\x1b[0m: too big"),
        ("simulating 4 configurations", "simulating 4 configurations"),
    ],
)
def test_an_outcome_is_colored_if_colors_are_on(monkeypatch, capsys, line, painted):
    output.say_progress(line)
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    output.say_progress(line)
    assert capsys.readouterr().err.splitlines() == [line, painted]
