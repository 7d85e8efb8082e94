"""Runs whose memory depends on values that nobody knows: when they run again, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_runs import RANK, depends_on_values, fits, ran_out

from oomdoctor.commands.devices.emulated import emulated_gpus
from oomdoctor.commands.run.branches import unknown_branches
from oomdoctor.commands.run.places import is_only_logged
from oomdoctor.commands.run.process.command import run_command
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.rank_records import Process
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.commands.run.values import needs_most, unknown_sizes, with_both_ends
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import UnknownSize, UnknownSizes
from oomdoctor.records.report.warnings import warning
from oomdoctor.render.blocks import Look
from oomdoctor.render.run_page import run_sections
from oomdoctor.units import GIB

REQUEST = WatchRequest(("python", "train.py"), emulated_gpus("H100"), Path("python"), "steady")
AGAIN = replace(REQUEST, most=True)
SIZE = UnknownSize("train.py", 7, "index", True, 3, None)
READ = {
    "file": "train.py",
    "line": 7,
    "inner_file": "train.py",
    "inner_line": 7,
    "count": 2,
    "operator": "index",
    "read": "size",
    "open": False,
}
SOURCE = """\
total += mask.sum().item()
rows = mask.sum().item()
print(mask.sum().item())
writer.log({"accuracy": right.sum().item()})
part = x[: mask.sum().item()]
kept = f"{mask.sum().item()} rows"
entries.append(LogItem("loss", loss.item()))
"""


def _processes(*reads: dict[str, Any]) -> list[Process]:
    return [
        Process(
            0,
            {
                "unknown_reads": [{**READ, **read} for read in reads],
                "own_files": [],
                "ended_loops": [],
                "exception": None,
            },
        )
    ]


def _both(first: Report, *others: Report) -> Report:
    return with_both_ends(REQUEST, first, others)


def _report(peak_gib: float, *sizes: UnknownSize, **changes: Any) -> Report:
    rank = replace(RANK, peak_reserved_bytes=int(peak_gib * GIB))
    known = UnknownSizes("0", sizes) if sizes else None
    return replace(fits(), ranks=(rank,), unknown_sizes=known, **changes)


@pytest.mark.parametrize(
    ("line", "logged"),
    [(1, True), (2, False), (3, True), (4, True), (5, False), (6, True), (7, True)],
)
def test_integers_that_are_only_logged(tmp_path: Path, line: int, logged: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    assert is_only_logged(str(file), line) == logged


@pytest.mark.parametrize(
    "file", ["torch/storage.py", "safetensors/torch.py", "torch/nn/modules/module.py"]
)
@pytest.mark.parametrize("kind", ["integer", "numbers"])
def test_what_a_checkpoint_saves_is_no_size(file: str, kind: str) -> None:
    """A Trainer that saved its model was not exact: it read 65 norms and their states."""
    read = {
        "read": kind,
        "inner_file": f"/venv/site-packages/{file}",
        "inner_line": 264,
        "open": True,
    }
    (process,) = _processes({"operator": "copy_", **read})
    assert unknown_sizes(REQUEST, [process]) is None
    assert unknown_branches(process.record["unknown_reads"], ()) == ()


def test_sizes_come_first_and_numbers_and_branches_are_none(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    integer = {"read": "integer", "operator": "item", "inner_file": str(file), "count": 9}
    found = unknown_sizes(
        REQUEST,
        _processes(
            {**integer, "line": 2, "inner_line": 2},
            {**integer, "line": 1, "inner_line": 1},
            {"open": True},
            {},
            {"read": "number"},
            {"read": "truth"},
        ),
    )
    assert found is not None
    assert [(one.line, one.operator, one.count) for one in found.sizes] == [
        (7, "index", 4),
        (2, "item", 9),
    ]
    assert [one.bounded for one in found.sizes] == [None, None]  # zeros tell nothing about limits
    assert unknown_sizes(REQUEST, _processes({"read": "number"})) is None


def test_only_the_run_with_the_most_tells_what_no_shape_limits() -> None:
    found = unknown_sizes(AGAIN, _processes({}, {"line": 8, "open": True}))
    assert found is not None and found.assumed == "max"
    assert [(one.line, one.bounded) for one in found.sizes] == [(7, True), (8, False)]


@pytest.mark.parametrize(("grows", "bounded"), [(True, False), (False, True)])
def test_a_loop_that_adds_numbers_up_has_no_limit_if_its_turns_keep_memory(
    tmp_path: Path, grows: bool, bounded: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text("while t < 1.:\n    y = net(y)\n    t += y.max().item()\n")
    read = {"read": "number", "inner_file": str(file), "inner_line": 3, "line": 3, "open": True}
    found = unknown_sizes(AGAIN, _processes({**read, "file": str(file), "grows": grows}))
    assert found is not None
    assert [(one.operator, one.bounded) for one in found.sizes] == [("while", bounded)]


def test_a_number_that_is_rounded_has_no_limit_and_one_that_is_logged_is_none(
    tmp_path: Path,
) -> None:
    file = tmp_path / "train.py"
    file.write_text("n = int(x.item())\nprint(x.item())\n")
    number = {"read": "number", "operator": "item", "inner_file": str(file), "open": True}
    found = unknown_sizes(
        AGAIN, _processes(*({**number, "line": line, "inner_line": line} for line in (1, 2)))
    )
    assert found is not None
    assert [(one.line, one.bounded) for one in found.sizes] == [(1, False)]


def test_an_integer_that_neither_run_knows_is_no_proof_that_memory_is_the_same() -> None:
    integer = replace(SIZE, operator="item", allocates=False, bounded=False)
    both = _both(_report(5, replace(integer, bounded=None)), _report(5, integer))
    assert both.unknown_sizes is not None and both.unknown_sizes.sizes == (integer,)
    assert both.smallest_gpu is None
    assert "No shape limits train.py:7" in _page(both) and "memory is exact" not in _page(both)


def test_a_run_is_repeated_unless_a_share_was_asked_for_or_memory_ran_out() -> None:
    depends = _report(2, SIZE)
    assert needs_most(REQUEST, depends)
    assert not needs_most(replace(REQUEST, values="half"), depends)
    assert not needs_most(REQUEST, _report(2))
    assert not needs_most(REQUEST, replace(depends, status="no"))
    # Zeros select nothing, and the maximum of nothing is an error.
    assert needs_most(REQUEST, replace(depends, status="error"))
    counts = _report(2, replace(SIZE, allocates=False), status="error")
    assert not needs_most(REQUEST, counts)


def test_everything_follows_the_upper_end() -> None:
    first, upper = _report(2, SIZE), replace(SIZE, bounded=True)
    again = replace(
        ran_out(), unknown_sizes=UnknownSizes("max", (upper,)), ranks=ran_out().ranks[:1]
    )
    both = _both(first, again)
    assert (both.status, both.exit_code, both.exit_code_of_command) == ("no", 1, 1)
    assert both.next_commands == again.next_commands and both.smallest_gpu is None
    peak = again.ranks[0].peak_reserved_bytes
    assert both.unknown_sizes == UnknownSizes("max", (upper,), 2 * GIB, peak)
    assert f"2.00 GiB to more than {peak / GIB:.1f} GiB reserved" in _page(both)


def test_the_run_with_fewer_rows_may_be_the_larger_one() -> None:
    both = _both(_report(5, SIZE), _report(3, SIZE))
    assert both.ranks[0].peak_reserved_bytes == 5 * GIB
    assert both.unknown_sizes is not None
    assert both.unknown_sizes.assumed == "0"
    assert "peak 3.00 GiB to 5.00 GiB reserved" in _page(both)


def test_equal_ends_are_said_and_counted_numbers_leave_memory_exact() -> None:
    both = _both(_report(5, SIZE), _report(5, SIZE))
    assert "peak 5.00 GiB reserved" in _page(both)
    assert "The peak is the same" in _page(both) and "memory is exact" not in _page(both)
    assert "the peak is the same at both ends" in _page(both)
    integer = replace(SIZE, allocates=False)
    both = _both(_report(5, SIZE, integer), _report(5, SIZE, integer))
    assert both.unknown_sizes is not None and both.unknown_sizes.sizes == (SIZE,)
    assert _both(_report(5, integer), _report(5, integer)).unknown_sizes is None
    both = _both(_report(5, integer), _report(6, integer))
    assert both.unknown_sizes is not None and both.unknown_sizes.upper_bytes == 6 * GIB


def test_without_an_upper_end_no_card_is_recommended() -> None:
    failed = UnknownSizes("max", (SIZE,), failed="ValueError: too many rows")
    again = replace(_report(6, SIZE), status="error", exit_code=1, unknown_sizes=failed)
    both = _both(_report(5, SIZE), again)
    assert (both.status, both.smallest_gpu) == ("ok", None)
    assert both.next_commands == (
        "oomdoctor run --emulate 'NVIDIA H100 80GB HBM3' --values half -- python train.py",
    )
    page = _page(both)
    assert "May fit" in page and "at least 5.00 GiB" in page
    assert "ValueError: too many rows" in page
    unlimited = _report(6, replace(SIZE, bounded=False))
    both = _both(_report(5, SIZE), unlimited)
    assert (both.smallest_gpu, both.next_commands) == (None, ())
    assert "No shape limits train.py:7" in _page(both) and "May fit" in _page(both)


def test_a_further_run_that_fails_leaves_the_upper_end_open() -> None:
    branch = replace(SIZE, operator="if", allocates=False, bounded=True)
    failed = UnknownSizes("max", (branch,), failed="ValueError: too many rows")
    late = replace(_report(9, branch), status="error", exit_code=1, unknown_sizes=failed)
    both = _both(_report(5, branch), _report(6, branch), late)
    assert (both.status, both.smallest_gpu, both.next_commands) == ("ok", None, ())
    page = _page(both)
    assert "May fit" in page and "at least 6.00 GiB" in page
    assert "A further run" in page and "ValueError: too many rows" in page
    for untried in (True, False):
        ends = (_report(5, branch), [_report(6, branch), _report(7, branch)])
        both = with_both_ends(REQUEST, *ends, untried=untried)
        assert ("no run took them" in _page(both)) is untried
        assert (both.smallest_gpu is None) is untried


def test_several_branches_go_the_other_way_in_one_run() -> None:
    branch = replace(SIZE, operator="if", allocates=False, bounded=True)
    both = _both(*(_report(peak, branch, replace(branch, line=9)) for peak in (5, 6)))
    assert "All of them went the other way in one run" in _page(both)


def test_a_run_that_zeros_end_is_told_by_the_one_with_the_most() -> None:
    failed = UnknownSizes("0", (SIZE,), failed="IndexError: max(): reduction of nothing")
    first = replace(_report(5, SIZE), status="error", exit_code=1, unknown_sizes=failed)
    both = _both(first, _report(6, replace(SIZE, bounded=True)))
    assert (both.status, both.exit_code) == ("ok", 0)
    assert "Fits" in _page(both) and "up to 6.00 GiB" in _page(both)
    assert "With zeros it failed: IndexError" in _page(both)


def test_a_share_that_was_asked_for_is_named() -> None:
    half = UnknownSizes("half", (SIZE,))
    page = _page(replace(_report(5, SIZE), unknown_sizes=half))
    assert "with --values half: peak 5.00 GiB reserved" in page
    assert "memory is exact" not in page
    assert "40.0 GiB to 63.3 GiB" in _page(depends_on_values())


def _page(report: Report) -> str:
    return " ".join(str(section) for section in run_sections(report, Look()))


def test_a_second_run_that_does_not_end_is_ended() -> None:
    ended = run_command(
        ("sleep", "60"), {"PATH": "/usr/bin:/bin"}, Tail(), shown=False, limit_s=0.2
    )
    assert (ended.exit_code, ended.interrupted) == (143, False)
    again = _report(1, SIZE, status="error", exit_code_of_command=ended.exit_code)
    both = _both(_report(5, SIZE), again)
    assert "gave no answer: it did not end in time" in _page(both)


def test_ctrl_c_in_the_second_run_interrupts_the_whole() -> None:
    again = _report(1, SIZE, status="interrupted", exit_code=130)
    both = _both(_report(5, SIZE), again)
    assert (both.status, both.exit_code) == ("interrupted", 130)
    assert both.ranks[0].peak_reserved_bytes == 5 * GIB


def test_where_no_values_are_computed_memory_is_not_called_exact() -> None:
    report = replace(_report(5), warnings=(warning("no_values", reason="no compiler"),))
    assert "memory is exact except for what the warnings name" in _page(report)


def test_memory_is_exact_unless_a_branch_decides() -> None:
    decided, free = _report(5), replace(_report(5), ranks=(replace(RANK, unknown_branches=()),))
    assert RANK.unknown_branches
    assert "memory is exact, unless a line that reads unknown values" in _page(decided)
    assert "memory is exact. No kernel" in _page(free)
