"""From the records that processes leave to the memory of each rank."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.fit import USUAL_HEADROOM
from oomdoctor.commands.devices.cards import card_named
from oomdoctor.commands.devices.emulated import emulated_gpus
from oomdoctor.commands.run.branches import unknown_branches
from oomdoctor.commands.run.places import library_line, may_decide, phase_of_peak, user_line
from oomdoctor.commands.run.process.command import Ended
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.rank_records import Events, rank_memory, read_events, read_processes
from oomdoctor.commands.run.seen_outside import Samples, Seen
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.commands.run.smallest_card import (
    least_capability,
    needed_together,
    smallest_gpu,
    with_cards,
)
from oomdoctor.records.report.report import bare_report
from oomdoctor.records.report.run import Place, RankMemory
from oomdoctor.units import GIB, MIB

LIBRARIES = ["/venv/lib/python3.11", "/venv/lib/python3.11/site-packages"]


def _usable(device: dict[str, Any]) -> int:
    return 10 * GIB - max(0, device["outside_bytes"] - GIB)


def _frame(file: str, line: int, name: str = "f") -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


TORCH = _frame("/venv/lib/python3.11/site-packages/torch/nn/functional.py", 7, "linear")
MINE = _frame("/home/me/model.py", 12, "forward")
MAIN = _frame("/home/me/train.py", 3, "<module>")


def _peak(phase: str, frames: list[Any], backward: list[Any] | None = None) -> dict[str, Any]:
    return {"phase": phase, "frames": frames, "backward_frames": backward or []}


def _record(**changes: Any) -> dict[str, Any]:
    device = {
        "device": 0,
        "peak_allocated_bytes": 3 * GIB,
        "peak_reserved_bytes": 4 * GIB,
        "retries": 0,
        "outside_bytes": GIB + 512,
        "peak": {**_peak("forward", [TORCH, MINE, MAIN]), "module": "layers.3", "step": 2},
        "steps": [],
        "curve": [[1_000_000 + i, 0, i % 700, 900] for i in range(1000)],
        "events_are_whole": True,
    }
    record = {
        "pid": 11,
        "rank": None,
        "written_at": 1.0,
        "ended": True,
        "step": 3,
        "stopped": "steady",
        "exception": None,
        "ooms": [],
        "unknown_reads": [],
        "ended_loops": [],
        "own_files": [],
        "library_folders": LIBRARIES,
        "devices": [device],
    }
    return {**record, **changes}


def _write(folder: Path, *records: dict[str, Any]) -> None:
    for record in records:
        (folder / f"process-{record['pid']}.json").write_text(json.dumps(record))


def _ranks(folder: Path, *, failed: bool = False) -> list[RankMemory]:
    return [
        rank
        for process in read_processes(folder)
        for rank in rank_memory(process, failed=failed, usable_bytes=_usable, context_bytes=GIB)
    ]


def test_a_rank_at_its_peak(tmp_path: Path) -> None:
    _write(tmp_path, _record())
    (rank,) = _ranks(tmp_path)
    assert (rank.outcome, rank.steps, rank.stopped) == ("fits", 3, "steady")
    assert (rank.peak_device_bytes, rank.headroom_bytes) == (5 * GIB, 6 * GIB - 512)
    assert rank.where == Place("/home/me/model.py", 12, "forward")
    assert rank.library_where == Place(TORCH["filename"], 7, "linear")
    assert (rank.peak_phase, rank.peak_module) == ("forward", "layers.3")


def test_the_curve_is_short_and_keeps_its_peak(tmp_path: Path) -> None:
    _write(tmp_path, _record())
    memory = _ranks(tmp_path)[0].memory
    assert len(memory) <= 120
    assert max(point.allocated_bytes for point in memory) == 699
    assert memory[0].at_s < memory[-1].at_s < 0.01


def test_ranks_of_a_launcher_keep_their_numbers(tmp_path: Path) -> None:
    _write(tmp_path, _record(pid=1, rank=1), _record(pid=2, rank=0))
    assert [(rank.rank, rank.pid) for rank in _ranks(tmp_path)] == [(0, 2), (1, 1)]


def test_processes_without_ranks_are_numbered_in_their_order(tmp_path: Path) -> None:
    _write(tmp_path, _record(pid=5, written_at=2.0), _record(pid=9, written_at=1.0))
    assert [(rank.rank, rank.pid) for rank in _ranks(tmp_path)] == [(0, 9), (1, 5)]


def test_a_process_that_used_no_gpu_and_a_torn_record_are_left_out(tmp_path: Path) -> None:
    _write(tmp_path, _record(devices=[]))
    (tmp_path / "process-8.json").write_text('{"pid": 8')
    assert read_processes(tmp_path) == []


LOSS = _frame("/v/transformers/loss/loss_utils.py", 36, "fixed_cross_entropy")
OOM = {
    "device": 0,
    "requested_bytes": 2 * GIB,
    "total_bytes": 16 * GIB,
    "free_bytes": GIB,
    "allocated_bytes": 14 * GIB,
    "module": "lm_head",
    "step": 2,
    **_peak("forward", [TORCH, MAIN]),
}


@pytest.mark.parametrize(
    ("changes", "outcome", "caught"),
    [
        ({"step": 1, "exception": {"type": "OutOfMemoryError", "message": ""}}, "oom", False),
        ({"step": 1, "ended": False}, "oom", False),
        ({"step": 1}, "fits", True),  # it ended well without a further step
        ({"step": 2, "ended": False}, "fits", True),  # a further step came after it
    ],
)
def test_a_failed_request(
    tmp_path: Path, changes: dict[str, Any], outcome: str, caught: bool
) -> None:
    _write(tmp_path, _record(ooms=[OOM], **changes))
    (rank,) = _ranks(tmp_path)
    assert rank.outcome == outcome
    assert rank.oom is not None
    assert (rank.oom.caught, rank.oom.least_bytes) == (caught, 16 * GIB)
    assert rank.oom.where == Place("/home/me/train.py", 3, "<module>")


def test_a_script_that_catches_the_error_and_exits(tmp_path: Path) -> None:
    """It says `use a smaller batch` and calls `sys.exit(1)`."""
    _write(tmp_path, _record(ooms=[OOM], step=1))
    (rank,) = _ranks(tmp_path, failed=True)
    assert rank.outcome == "oom" and rank.oom is not None and not rank.oom.caught


def test_an_exception_that_is_not_about_memory(tmp_path: Path) -> None:
    _write(tmp_path, _record(exception={"type": "KeyError", "message": "x"}))
    assert _ranks(tmp_path, failed=True)[0].outcome == "failed"


@pytest.mark.parametrize(
    ("peak", "phase"),
    [
        (_peak("forward", [TORCH, MAIN]), "forward"),
        # transformers computes the loss in the model's forward pass
        (_peak("forward", [LOSS, MAIN]), "loss"),
        (_peak("loss", []), "backward"),  # the thread of the backward pass has no Python stack
        (_peak("loss", [TORCH, MAIN]), "loss"),
        (_peak("other", [_frame("/v/torch/nn/utils/clip_grad.py", 3), MAIN]), "clip"),
        (_peak("other", [_frame("/v/x.py", 3, "from_pretrained"), MAIN]), "load"),
        (_peak("other", [MAIN]), "unknown"),
    ],
)
def test_the_phase_of_a_peak(peak: dict[str, Any], phase: str) -> None:
    assert phase_of_peak(peak) == phase


def test_in_the_backward_pass_the_line_is_the_one_that_called_it() -> None:
    peak = _peak("backward", [TORCH], [TORCH, MAIN])
    assert user_line(peak, LIBRARIES) == Place("/home/me/train.py", 3, "<module>")
    again = _peak("backward", [TORCH, MINE], [TORCH, MAIN])  # activations are computed again
    assert user_line(again, LIBRARIES) == Place("/home/me/model.py", 12, "forward")


def test_a_function_of_a_library_in_the_backward_pass_of_the_loss() -> None:
    peak = _peak("loss", [_frame("/venv/lib/python3.11/x.py", 5, "backward")], [TORCH, MAIN])
    assert phase_of_peak(peak) == "backward"
    assert user_line(peak, LIBRARIES) == Place("/home/me/train.py", 3, "<module>")


def test_a_peak_in_the_users_own_line_has_no_line_of_a_library() -> None:
    assert library_line(_peak("load", [MAIN]), LIBRARIES) is None
    assert user_line(_peak("load", [_frame("<frozen runpy>", 1)]), LIBRARIES) is None


def test_frames_that_are_not_python_are_passed_over() -> None:
    peak = _peak("forward", [_frame("??", 0, "at::empty"), _frame("/x/a.cpp", 4), TORCH, MAIN])
    assert library_line(peak, LIBRARIES) == Place(TORCH["filename"], 7, "linear")
    assert user_line(peak, LIBRARIES) == Place("/home/me/train.py", 3, "<module>")


def test_a_script_that_a_package_installed_is_the_users_own() -> None:
    script = "/venv/lib/site-packages/trl/scripts/sft.py"
    peak = _peak("forward", [TORCH, _frame(script, 9)])
    assert user_line(peak, ["/venv/lib"]) is None
    assert user_line(peak, ["/venv/lib"], script) == Place(script, 9, "f")


def test_files_below_the_working_directory_are_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    peak = _peak("load", [_frame(str(tmp_path / "src" / "a.py"), 1)])
    assert user_line(peak, LIBRARIES) == Place("src/a.py", 1, "f")


SOURCE = """\
print("loss", loss.item())
total += loss.item()
if loss > 3:
    stop()
kept = x[x > 0]
rows = torch.nonzero(mask)
text = f"{loss:.3f}"
while True:
    value = float(loss)
assert loss.item() < 9
if skip and (torch.isnan(loss) or torch.isinf(loss)):
    pass
norm = norm.item() if isinstance(norm, torch.Tensor) else norm
if limit:
    seen = loss.item()
right = (y == labels).sum().item()
better = loss.item() < best
right += (y == labels).sum().item(); total += len(y)
if loss.item() < best: best = loss
if not sum(v.item() for v in state["found_inf_per_device"].values()): step()
scale = first if (made := make()) is None else float(made.item())
"""


@pytest.mark.parametrize(
    ("line", "decides"),
    [
        (1, 0),
        (2, 0),
        (3, 1),
        (5, 1),
        (6, 1),
        (7, 0),
        (9, 0),
        (10, 1),
        (11, 0),
        (13, 0),
        (14, 1),
        (15, 0),
        (16, 0),
        (17, 1),
        (18, 0),
        (19, 1),
        (20, 0),
        (21, 0),
    ],
)
def test_lines_that_may_decide(tmp_path: Path, line: int, decides: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    assert may_decide(str(file), line) == bool(decides)


def test_branches_are_counted_by_the_users_line(tmp_path: Path) -> None:
    library = tmp_path / "library.py"
    library.write_text("if flag:\n    work()\nseen = flag.item()\n")
    reads = [
        {"file": "a.py", "line": 1, "inner_file": str(library), "inner_line": 1, "count": 2},
        {"file": "b.py", "line": 5, "inner_file": str(library), "inner_line": 1, "count": 3},
        {"file": "b.py", "line": 5, "inner_file": str(library), "inner_line": 3, "count": 9},
    ]
    reads += [{**reads[0], "line": 7, "read": "size"}]
    found = unknown_branches([{"read": "truth", **read} for read in reads], ())
    assert [(one.file, one.line, one.count) for one in found] == [("b.py", 5, 3), ("a.py", 1, 2)]


def _fitting(tmp_path: Path, peak: int, reserved: int) -> list[RankMemory]:
    record = _record()
    record["devices"][0].update(peak_allocated_bytes=peak, peak_reserved_bytes=reserved)
    _write(tmp_path, record)
    return _ranks(tmp_path)


def test_the_smallest_card_has_what_was_reserved(tmp_path: Path) -> None:
    ranks = _fitting(tmp_path, 13 * GIB, 13 * GIB)
    card = smallest_gpu(ranks, [], (7, 5), AllocatorSettings())
    assert card is not None and 14 * GIB < card.total_bytes < 15 * GIB


def test_a_replay_finds_a_smaller_card(tmp_path: Path) -> None:
    """What is cached on a large card is released on a small one."""
    ranks = _fitting(tmp_path, 12 * GIB, 22 * GIB)
    flat = array("q")
    for block, size in ((1, 10 * GIB), (1, -10 * GIB), (2, 12 * GIB)):
        flat.extend((block, size, 0))
    events = [Events(0, flat, True)]
    settings = AllocatorSettings()
    found = smallest_gpu(ranks, events, (7, 5), settings)
    assert found is not None and found.total_bytes < 17 * GIB
    torn = smallest_gpu(ranks, [Events(0, flat, False)], (7, 5), settings)
    assert torn is not None and torn.total_bytes > 22 * GIB


def test_what_others_hold_needs_room_too(tmp_path: Path) -> None:
    """A library of its own holds 2 GiB besides a context of 1 GiB."""
    record = _record()
    record["devices"][0].update(peak_reserved_bytes=13 * GIB, beside_torch_bytes=3 * GIB)
    _write(tmp_path, record)
    (rank,) = _ranks(tmp_path)
    assert rank.peak_device_bytes == 16 * GIB
    card = smallest_gpu([rank], [], (7, 5), AllocatorSettings(), beside_bytes=2 * GIB)
    assert card is not None and 15 * GIB < card.total_bytes < 18 * GIB


@pytest.mark.parametrize(("begins", "together"), [(0.5, 9 * GIB), (1.0, 0)])
def test_processes_on_one_gpu_need_room_together(
    tmp_path: Path, begins: float, together: int
) -> None:
    _write(
        tmp_path,
        *(
            _record(pid=pid, began_at=began, written_at=began + 1)
            for pid, began in ((1, 0), (2, begins))
        ),
    )
    ranks = _ranks(tmp_path)
    assert needed_together(ranks, read_processes(tmp_path), GIB) == together
    card = smallest_gpu(ranks, [], (7, 5), AllocatorSettings(), shared_bytes=23 * GIB)
    assert card is not None and card.total_bytes > 23 * GIB


def test_streams_do_not_share_cached_blocks(tmp_path: Path) -> None:
    ranks = _fitting(tmp_path, 8 * GIB, 24 * GIB)
    flat = array("q")
    for block, size, stream in ((1, 8 * GIB, 0), (2, 7 * GIB, 1), (3, 7 * GIB, 2)):
        flat.extend((block, size, stream))
    found = smallest_gpu(ranks, [Events(0, flat, True)], (7, 5), AllocatorSettings())
    assert found is not None and found.total_bytes > 22 * GIB


def test_the_smallest_card_keeps_the_headroom_of_a_plan(tmp_path: Path) -> None:
    """`run` said that a card would do, and `plan` for it: short by 14.8 MiB."""
    card = card_named("RTX A4500", USUAL_HEADROOM)
    room = card.usable_bytes - card.context.likely
    for reserved in (room, room + 15 * MIB):
        ranks = _fitting(tmp_path, reserved, reserved)
        found = smallest_gpu(ranks, [], (8, 0), AllocatorSettings())
        assert found is not None
        planned = card_named(found.name, USUAL_HEADROOM)
        assert planned.usable_bytes >= reserved + planned.context.likely


def _step(step: int, peak: int) -> dict[str, int]:
    return {
        "step": step,
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": peak,
        "allocated_bytes": GIB,
        "reserved_bytes": 4 * GIB,
    }


@pytest.mark.parametrize(
    ("peaks", "named"),
    [([], False), ([3], False), ([2, 3], False), ([3, 3], True), ([3, 3, 4], False)],
)
def test_a_run_that_broke_off_names_a_card_only_once_memory_repeats(
    tmp_path: Path, peaks: list[int], named: bool
) -> None:
    record = _record(step=len(peaks), stopped=None, ended=False)
    steps = [_step(number, peak * GIB) for number, peak in enumerate(peaks, 1)]
    record["devices"][0]["steps"] = steps
    _write(tmp_path, record)
    settings = AllocatorSettings()
    for failed in (True, False):  # an error, and a signal that the script handles
        ranks = _ranks(tmp_path, failed=failed)
        found = smallest_gpu(ranks, [], (7, 5), settings, finished=False)
        assert (found is not None) == named
    assert smallest_gpu(_ranks(tmp_path), [], (7, 5), settings) is not None


@pytest.mark.parametrize(("steps", "named"), [(1, False), (2, True)])
def test_a_run_of_one_step_on_request_names_no_card(
    tmp_path: Path, steps: int, named: bool
) -> None:
    """The states of the optimizer come at the end of the first step."""
    _write(tmp_path, _record(step=steps, stopped="steps"))
    found = smallest_gpu(_ranks(tmp_path), [], (7, 5), AllocatorSettings())
    assert (found is not None) == named


def test_no_card_is_named_for_a_run_that_ran_out(tmp_path: Path) -> None:
    _write(tmp_path, _record(ooms=[OOM], step=1, ended=False))
    assert smallest_gpu(_ranks(tmp_path), [], (7, 5), AllocatorSettings()) is None


@pytest.mark.parametrize(
    ("emulated", "named"), [("T4", "1TiB"), ("2xT4", "2x1TiB"), ("1TiB", None)]
)
def test_after_a_run_that_ran_out_the_next_finds_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulated: str, named: str | None
) -> None:
    """It named the card above the request that failed, where the next request failed again."""
    monkeypatch.setattr("oomdoctor.commands.devices.emulated.value_warnings", lambda python: [])
    told = {"world": 1, "torch": [2, 13], "architectures": ["sm_75"], "allocator": None}
    _write(tmp_path, _record(ooms=[OOM], step=1, ended=False, **told))
    gpus = emulated_gpus(emulated)
    request = WatchRequest(("python", "train.py"), gpus, Path("python"), "steady", values="1")
    bare = bare_report("run", "no", 1, datetime(2026, 11, 24, tzinfo=UTC), 1.0)
    report = replace(bare, ranks=tuple(_ranks(tmp_path, failed=True)))
    seen = Seen(tmp_path, Ended(1, None), Tail(), Samples(), (), tuple(read_processes(tmp_path)))
    found = with_cards(report, request, seen)
    expected = f"oomdoctor run --emulate {named} --values 1 -- python train.py"
    assert found.next_commands == ((expected,) if named else ())


def test_a_card_needs_kernels_of_the_build() -> None:
    assert least_capability("7.5", ["sm_75", "sm_80", "compute_90"]) == (7, 5)
    assert least_capability("9.0", ["sm_75", "sm_90a"]) == (8, 0)
    assert least_capability("12.0", ["sm_100", "sm_120"]) == (10, 0)


def test_events_are_read_back(tmp_path: Path) -> None:
    _write(tmp_path, _record())
    (tmp_path / "events-11-0.bin").write_bytes(array("q", [1, 2 * MIB, 0]).tobytes())
    (events,) = read_events(tmp_path, read_processes(tmp_path))
    assert list(events.numbers) == [1, 2 * MIB, 0] and events.is_whole


def test_a_thread_of_python_is_not_in_the_backward_pass() -> None:
    def phase(*names: str) -> str:
        frames = [{"filename": "/lib/engine.py", "line": 1, "name": name} for name in names]
        return phase_of_peak({"frames": frames, "backward_frames": [], "phase": "loss"})

    assert phase("wake") == "backward"
    assert phase("wake", "run", "_bootstrap_inner", "_bootstrap") == "loss"
