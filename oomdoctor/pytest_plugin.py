"""The mark `gpu_memory` for pytest: a test must stay within a budget of GPU memory.

    @pytest.mark.gpu_memory("RTX 4090", max="20GiB")
    def test_a_step_fits(): ...

Each marked test runs in another process, on an emulated card, and is judged as a check of
`oomdoctor.toml` is. So torch may be imported already, as a CPU build too. Pytest finds
the plugin by itself where oomdoctor is installed.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oomdoctor.system.environment import variable

if TYPE_CHECKING:
    from oomdoctor.commands.check.running import Ran
    from oomdoctor.records.report.check import Baseline, CheckResult
    from oomdoctor.system.check_file import Check

_MARK = "gpu_memory"
_INSIDE = "OOMDOCTOR_GPU_MEMORY_TEST"  # where the process that runs the test itself says more
_BASELINE, _PYTHON, _REQUIRE = "gpu_memory_baseline", "gpu_memory_python", "gpu_memory_require"
_OPTIONS = ("max", "max_growth", "require", "time_limit")
_QUIET = ("-q", "--no-header", "--disable-warnings")
_HOW = f"`oomdoctor env` says what emulation needs; name an interpreter in {_PYTHON}."
_results: list[CheckResult] = []
_EARLIER: pytest.StashKey[Baseline] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options and the settings of the plugin."""
    group = parser.getgroup("oomdoctor", "GPU memory on emulated cards")
    group.addoption(
        "--gpu-memory-update",
        action="store_true",
        help="Accept today's peaks of tests marked gpu_memory: write them to the baseline file.",
    )
    parser.addini(_BASELINE, "The file with the accepted peaks.", default="gpu-memory.json")
    parser.addini(_PYTHON, "The interpreter of marked tests, with a CUDA build of torch.")
    parser.addini(
        _REQUIRE, "Fail where a marked test cannot run, instead of skipping it.", type="bool"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(card, max=None, max_growth='2%', require=False, time_limit='10m'): run on an "
        "emulated card; fail above a budget (20GiB, or 80% of the card) or above the baseline.",
    )


@pytest.hookimpl(trylast=True)  # after tests are deselected by -k and -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put an item that starts another process in the place of each marked test."""
    if variable(_INSIDE) is not None:
        for item in items:
            _without_expectation(item)
        return
    for number, item in enumerate(items):
        parent = item.parent
        if parent is not None and item.get_closest_marker(_MARK) is not None:
            items[number] = GpuMemoryTest.from_parent(parent, name=item.name, test=item)


def _without_expectation(item: pytest.Item) -> None:
    """Take the marks `xfail` away, which the item of the other process has; a call still counts."""
    for node in item.listchain():
        node.own_markers[:] = [mark for mark in node.own_markers if mark.name != "xfail"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep why the test itself was skipped or failed."""
    _tell(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep why its module could not be imported, or was skipped."""
    _tell(report)


def _tell(report: pytest.TestReport | pytest.CollectReport) -> None:
    file = variable(_INSIDE)
    if file is None or report.passed or Path(file).exists():
        return
    outcome: str = report.outcome
    crash = getattr(report.longrepr, "reprcrash", None)
    if hasattr(report, "wasxfail"):  # it called pytest.xfail
        outcome, why = "xfailed", report.wasxfail.removeprefix("reason: ")
    elif isinstance(report.longrepr, tuple):
        why = report.longrepr[2].removeprefix("Skipped: ")
    else:
        why = report.longreprtext if crash is None else crash.message
    Path(file).write_text(f"{outcome}\n{why}", encoding="utf-8")


class GpuMemoryTest(pytest.Item):
    """A marked test, which runs in another process; its own fixtures are set up there."""

    def __init__(self, *, test: pytest.Item, **options: Any) -> None:
        super().__init__(**options)
        self.own_markers = test.own_markers
        self._test = test

    def runtest(self) -> None:
        """Run it on its card, and fail or skip it by its result."""
        mark = self.get_closest_marker(_MARK)
        assert mark is not None
        _judge(self, mark)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where the test is."""
        return self._test.reportinfo()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Read the baseline, to say at the end what an update changed."""
    config = session.config
    if config.getoption("--gpu-memory-update") and variable(_INSIDE) is None:
        from oomdoctor.commands.check.run_check import read_baseline
        from oomdoctor.errors import OomDoctorError

        with suppress(OomDoctorError):  # each test says what is wrong with it
            config.stash[_EARLIER] = read_baseline(_baseline_file(config))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which peaks of the baseline are new or changed; those of xdist's processes too."""
    earlier = config.stash.get(_EARLIER, None)
    path = _baseline_file(config)
    if earlier is None or not path.exists():
        return
    from oomdoctor.commands.check.run_check import read_baseline
    from oomdoctor.render.check_page import updated_lines

    lines = updated_lines(str(config.getini(_BASELINE)), earlier, read_baseline(path))
    terminalreporter.section("oomdoctor")
    for line in lines:
        terminalreporter.line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep today's peaks, if that was asked for."""
    if not session.config.getoption("--gpu-memory-update") or not _results:
        return
    from oomdoctor.commands.check.judging import with_peaks
    from oomdoctor.commands.check.run_check import read_baseline
    from oomdoctor.system.store.record_files import write_record

    path = _baseline_file(session.config)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # each process of xdist has some of the tests
        write_record(path, with_peaks(read_baseline(path), _results))
    finally:
        os.close(folder)


def _judge(item: pytest.Item, mark: pytest.Mark) -> None:
    """Run a marked test on its card, and fail or skip it by its result."""
    from oomdoctor.commands.check.judging import accepted_peak, judged
    from oomdoctor.commands.check.run_check import read_baseline
    from oomdoctor.commands.check.running import peak_of, run_one
    from oomdoctor.errors import ExitCode, OomDoctorError

    folder, wrong = item.config.rootpath, ""
    try:
        check = _check(item, mark)
        baseline = read_baseline(_baseline_file(item.config))
    except (OomDoctorError, ValueError) as error:
        wrong = str(error)
    if wrong:
        pytest.fail(f"{_MARK}: {wrong}", pytrace=False)
    with tempfile.TemporaryDirectory(prefix="oomdoctor-test-") as made:
        file = Path(made, "said")
        ran = run_one(replace(check, environment={_INSIDE: str(file)}), folder)
        said = file.read_text(encoding="utf-8") if file.exists() else ""
    outcome, _, why = said.partition("\n")
    if outcome == "skipped":
        pytest.skip(why)
    if outcome == "xfailed":
        pytest.xfail(why)
    if ran.report is None and ran.exit_code == ExitCode.MACHINE_UNFIT:
        required = mark.kwargs.get("require") or item.config.getini(_REQUIRE)
        (pytest.fail if required else pytest.skip)(f"{_MARK}: {ran.reason} {_HOW}")
    if why:
        ran = replace(ran, reason=why.strip().splitlines()[0])
    peak = None if ran.report is None else peak_of(ran.report, folder)
    accepted = accepted_peak(baseline, check, {} if peak is None else peak.versions)
    if item.config.getoption("--gpu-memory-update"):
        accepted = None  # today's peak becomes the baseline
    result = judged(check, ran, folder, accepted)
    if result.peak is not None:
        item.user_properties.append(("gpu_memory_peak_bytes", result.peak.peak_device_bytes))
    _results.append(result)
    if result.outcome != "passed":
        pytest.fail(_message(result, ran), pytrace=False)


def _check(item: pytest.Item, mark: pytest.Mark) -> Check:
    """The marked test as a check.

    Raises:
        ValueError: the card of the mark is missing, or an option is unknown.
    """
    from oomdoctor.commands.devices.emulated import emulated_gpus
    from oomdoctor.system.check_file import check_of

    unknown = [name for name in mark.kwargs if name not in _OPTIONS]
    if len(mark.args) != 1 or unknown:
        raise ValueError(f"takes a card and {', '.join(_OPTIONS)}, as {_MARK}('L4', max='20GiB')")
    python = item.config.getini(_PYTHON) or sys.executable
    command = [python, "-m", "pytest", item.nodeid, *_QUIET, "-p", "no:cacheprovider"]
    said = {
        "name": item.nodeid,
        "gpu": mark.args[0],
        "command": [*command, "--rootdir", str(item.config.rootpath), "-p", __name__],
        "max_peak": mark.kwargs.get("max"),
        "max_growth": mark.kwargs.get("max_growth"),
        "time_limit": mark.kwargs.get("time_limit", "10m"),
        "steps": "all",
        "python": python,
    }
    return check_of(said, emulated_gpus)


def _baseline_file(config: pytest.Config) -> Path:
    return config.rootpath / str(config.getini(_BASELINE))


def _message(result: CheckResult, ran: Ran) -> str:
    """Why the test failed: what grew, or the output of a test that failed itself."""
    from oomdoctor.render.check_page import grown_lines, why

    lines = [f"{_MARK} on {result.gpu}: {why(result)}"]
    if result.outcome in ("failed", "timed_out"):
        return "\n".join([*lines, ran.output.rstrip()])
    return "\n".join([*lines, *grown_lines(result)])
