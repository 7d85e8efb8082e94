"""From a snapshot's file to the answer about a device."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from snapshots import BASE, LIBRARY, Writer, training

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.snapshot import SnapshotDevice
from oomdoctor.render.words import file_line
from oomdoctor.snapshot.device_answer import device_of, difference_of
from oomdoctor.snapshot.history import History, history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.units import MIB


def answer(writer: Writer, folder: Path, **kwargs: Any) -> SnapshotDevice:
    return one(writer.write(folder / "snapshot.pickle", **kwargs))


def history(writer: Writer, folder: Path) -> History:
    found = read_snapshot(writer.write(folder / "snapshot.pickle"))
    (device,) = found.devices
    return history_of(found, device)


def one(path: Path) -> SnapshotDevice:
    found = read_snapshot(path)
    (device,) = found.devices
    return device_of(history_of(found, device))


def test_the_peak_and_what_held_it(tmp_path: Path) -> None:
    found = answer(training(), tmp_path)
    assert found.peak_allocated_bytes == (8 + 24 + 32 + 4 + 8 + 16) * MIB
    assert found.steps == 3 and found.peak is not None and found.has_stacks
    assert not found.truncated
    held = found.peak.categories
    assert held.weights_bytes == 8 * MIB
    assert held.activations_bytes == 24 * MIB
    assert held.logits_bytes == 32 * MIB
    assert held.gradients_bytes == 8 * MIB
    assert held.optimizer_bytes == 16 * MIB
    assert held.temporary_bytes == 4 * MIB
    assert held.other_bytes == 0
    assert found.peak.phase == "backward" and found.peak.step == 2
    largest = found.peak.blocks[0]
    assert (largest.bytes, largest.count, largest.category) == (32 * MIB, 1, "logits")
    assert largest.where is not None and (largest.where.file, largest.where.line) == (
        "train.py",
        21,
    )
    forward = next(b for b in found.peak.blocks if b.category == "activations")
    assert forward.where is not None and forward.where.file == "model.py"
    assert forward.library_where is not None and forward.library_where.function == "forward"
    assert sum(block.bytes for block in found.peak.blocks) == found.peak_allocated_bytes


def test_a_block_counts_with_what_was_not_worth_splitting_off(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("a", 3 * MIB + 1000, "forward")  # of a segment of 4 MiB
    writer.free("a")
    writer.alloc("b", 100, "forward")
    writer.free("b")
    found = answer(writer, tmp_path)
    assert found.peak_allocated_bytes == 4 * MIB
    assert (found.allocated_bytes, found.reserved_bytes) == (0, 4 * MIB)


def test_a_history_that_began_late_is_said_and_counted(tmp_path: Path) -> None:
    writer = training()
    del writer.events[: next(n for n, e in enumerate(writer.events) if e["action"] == "alloc") + 1]
    found = answer(writer, tmp_path)
    assert found.truncated and found.peak is not None
    assert found.peak_allocated_bytes == 92 * MIB
    assert found.peak.categories.weights_bytes == 8 * MIB
    del writer.events[:]
    found = answer(writer, tmp_path)
    assert found.truncated and found.peak is None and found.peak_allocated_bytes is None
    assert found.at_end.categories.weights_bytes == 8 * MIB


def test_states_that_were_there_before_are_told_from_weights(tmp_path: Path) -> None:
    writer = training(2)
    first = next(n for n, event in enumerate(writer.events) if event["size"] == 6 * MIB)
    del writer.events[: first + 6]  # the first step and all before it
    for segment in (document := writer.snapshot())["segments"]:
        for block in segment["blocks"]:
            block["frames"] = []
    path = tmp_path / "late.pickle"
    path.write_bytes(pickle.dumps(document))
    found = one(path)
    assert found.truncated and found.steps == 1 and found.peak is not None
    held = found.peak.categories
    assert (held.weights_bytes, held.optimizer_bytes) == (8 * MIB, 16 * MIB)
    assert held.gradients_bytes == 8 * MIB and held.activations_bytes == 24 * MIB


def test_states_from_before_that_are_freed_later_are_not_of_the_line_that_freed_them(
    tmp_path: Path,
) -> None:
    writer = training(2)
    writer._frames["delete"] = [{"name": "main", "filename": "train.py", "line": 99}]
    for name in ("state 1", "state 2"):
        writer.blocks[name] = (*writer.blocks[name][:3], "delete")
    for event in writer.events:  # torch notes where a block was freed
        if event["action"].startswith("free"):
            event["frames"] = writer._frames["delete"]
    writer.free("state 1", "state 2")
    first = next(n for n, event in enumerate(writer.events) if event["size"] == 6 * MIB)
    del writer.events[: first + 6]  # the first step and all before it
    peak = answer(writer, tmp_path).peak
    assert peak is not None
    assert peak.categories.optimizer_bytes == 16 * MIB
    assert peak.categories.weights_bytes == 8 * MIB
    states = next(held for held in peak.blocks if held.category == "optimizer")
    assert (states.confidence, states.where) == ("low", None)


def test_states_from_before_that_are_freed_later_keep_the_line_that_made_them(
    tmp_path: Path,
) -> None:
    writer = training(2)
    writer.alloc("activations", 24 * MIB, "forward")
    writer.note("oom", 5 * MIB, 64 * MIB, "forward")
    writer.free("activations", "state 1", "state 2", "weights")  # with the stacks of their births
    first = next(n for n, event in enumerate(writer.events) if event["size"] == 6 * MIB)
    del writer.events[: first + 6]
    peak = answer(writer, tmp_path).peak
    assert peak is not None
    assert peak.categories.optimizer_bytes == 16 * MIB
    states = next(held for held in peak.blocks if held.category == "optimizer")
    assert states.where is not None and (states.where.file, states.where.line) == ("train.py", 23)


def test_states_of_a_checkpoint_are_states(tmp_path: Path) -> None:
    writer = Writer()
    file = f"{LIBRARY}/torch/optim/optimizer.py"
    writer._frames["resume"] = [
        {"name": name, "filename": file, "line": 800}
        for name in ("_process_value_according_to_param_policy", "load_state_dict")
    ] + [{"name": "main", "filename": "train.py", "line": 12}]
    writer.alloc("weights", 8 * MIB, "load")
    writer.alloc("states", 16 * MIB, "resume")
    for _ in range(3):
        writer.alloc("activations", 24 * MIB, "forward")
        writer.alloc("gradients", 8 * MIB, "backward")
        writer.alloc("temporary", 6 * MIB, "optimizer")
        writer.free("activations", "temporary", "gradients")
    peak = answer(writer, tmp_path).peak
    assert peak is not None
    assert peak.categories.optimizer_bytes == 16 * MIB
    assert peak.categories.weights_bytes == 8 * MIB
    states = next(held for held in peak.blocks if held.category == "optimizer")
    assert states.where is not None and (states.where.file, states.where.line) == ("train.py", 12)


def test_paths_of_windows_and_notebooks_are_read_and_shortened(tmp_path: Path) -> None:
    site = LIBRARY.replace("/venv/lib/python3.11", "C:/Users/me/miniconda3/envs/train/Lib")
    temp = "C:/Users/me/AppData/Local/Temp/ipykernel_4711"
    places = {"train.py": f"{temp}/3856298371.py", "model.py": "C:/Users/me/project/model.py"}
    writer = Writer()
    for frame in (frame for frames in writer._frames.values() for frame in frames):
        file = places.get(frame["filename"], frame["filename"].replace(LIBRARY, site))
        frame["filename"] = file.replace("/", "\\")
    peak = answer(three_blocks(writer), tmp_path).peak
    there = answer(three_blocks(Writer()), tmp_path).peak
    assert peak is not None and there is not None
    assert peak.phase == there.phase
    assert [(h.category, h.confidence) for h in peak.blocks] == [
        (h.category, h.confidence) for h in there.blocks
    ]
    lines = {held.category: (held.where, held.library_where) for held in peak.blocks}
    assert {name: tuple(file_line(at) for at in both if at) for name, both in lines.items()} == {
        "weights": ("cell 3856298371:10", "module.py:1340"),
        "activations": ("model.py:33", "linear.py:125"),
        "logits": ("cell 3856298371:21", "functional.py:3462"),
    }


def three_blocks(writer: Writer) -> Writer:
    """Weights, activations and logits."""
    for name, size in (("load", 8 * MIB), ("forward", 24 * MIB), ("loss", 32 * MIB)):
        writer.alloc(name, size, name)
    return writer


def test_what_a_later_snapshot_holds_more(tmp_path: Path) -> None:
    before = history(training(2), tmp_path)
    writer = training(6, leak=3 * MIB)
    found = difference_of(before, history(writer, tmp_path))
    held = found.blocks[0]
    assert held.where is not None and held.where.line == 24
    assert held.count == 6 and 18 * MIB <= held.bytes <= 24 * MIB
    assert found.allocated_bytes == held.bytes == found.categories.other_bytes
    assert found.categories.weights_bytes == 0 and len(found.blocks) == 1
    back = difference_of(history(writer, tmp_path), before)
    assert (back.allocated_bytes, back.blocks[0].count) == (-held.bytes, -6)
    assert difference_of(before, before).blocks == ()
    whole = difference_of(None, before)
    assert whole.allocated_bytes == 24 * MIB == sum(b.bytes for b in whole.blocks)
    assert whole.reserved_bytes > whole.allocated_bytes


def test_gradients_that_are_kept_and_zeroed_are_gradients(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("weights", 8 * MIB, "load")
    for step in range(5):
        writer.alloc("batch", 2 * MIB, "kept")
        writer.alloc("activations", 24 * MIB, "forward")
        if step == 0:
            writer.alloc("workspace", 10 * MIB, "forward")
            writer.alloc("gradients", 8 * MIB, "backward")
            writer.alloc("workspace of the other thread", 10 * MIB, "backward")
            writer.alloc("states", 16 * MIB, "optimizer")
        writer.free("activations", "batch")
        writer.alloc("temporary", 6 * MIB, "optimizer")
        writer.free("temporary")
    found = answer(writer, tmp_path)
    assert found.peak is not None and found.growth is None
    held = found.peak.categories
    assert (held.gradients_bytes, held.weights_bytes) == (8 * MIB, 8 * MIB)
    assert held.optimizer_bytes == 16 * MIB and held.activations_bytes == 24 * MIB
    assert held.other_bytes == 22 * MIB  # with the batch, whose line is the user's own


def test_what_expandable_segments_would_have_saved(tmp_path: Path) -> None:
    writer = Writer()
    for n in range(4):
        writer.alloc(f"{n}", (20 + 4 * n) * MIB, "forward")
        writer.free(f"{n}")
    found = answer(writer, tmp_path)
    assert found.peak_reserved_bytes == (20 + 24 + 28 + 32) * MIB
    assert found.fragmentation.with_expandable_segments_bytes == 40 * MIB
    conf = "expandable_segments:True"
    assert answer(writer, tmp_path, conf=conf).fragmentation.with_expandable_segments_bytes is None


def test_a_block_that_another_stream_still_uses_is_not_allocated(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("a", 4 * MIB, "forward")
    writer.note("free_requested", BASE, 4 * MIB, "forward")
    writer.alloc("b", 4 * MIB, "load")
    writer.free("a")
    del writer.events[-2]
    found = answer(writer, tmp_path)
    assert found.peak_allocated_bytes == 4 * MIB == found.allocated_bytes


def test_growth_is_named_with_its_line(tmp_path: Path) -> None:
    found = answer(training(12, leak=3 * MIB), tmp_path)
    assert found.growth is not None and found.more_growth == ()
    assert found.growth.bytes_per_step == 3 * MIB
    assert found.growth.where is not None and found.growth.where.line == 24


@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_a_clean_training_is_not_accused(tmp_path: Path, steps: int) -> None:
    assert answer(training(steps), tmp_path).growth is None


def test_a_request_that_failed(tmp_path: Path) -> None:
    writer = training()
    writer.give_back("forward")
    writer.note("oom", 5 * MIB, 64 * MIB, "forward")
    found = answer(writer, tmp_path)
    assert found.oom is not None and found.retries == 1
    assert found.retry_cost is not None and found.retry_cost.elapsed_s is not None
    assert found.retry_cost.released_bytes > 0 and found.retry_cost.elapsed_s > 0
    assert (found.oom.requested_bytes, found.oom.free_bytes) == (64 * MIB, 5 * MIB)
    assert found.oom.phase == "forward"
    assert found.oom.where is not None and found.oom.where.line == 33


def test_an_emptied_cache_is_no_retry(tmp_path: Path) -> None:
    writer = training()
    writer.give_back("kept")
    writer.alloc("x", 64 * MIB, "forward")
    assert answer(writer, tmp_path).retries == 0
    assert answer(writer, tmp_path).retry_cost is None


def test_memory_that_is_not_allocated(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("a", 31 * MIB, "forward")
    writer.alloc("b", 8 * MIB, "load")
    writer.free("a")
    writer.alloc("c", 3 * MIB, "load")  # in the segment of a
    found = answer(writer, tmp_path).fragmentation
    assert found.free_in_segments_bytes == 29 * MIB
    assert (found.largest_free_bytes, found.held_open_bytes) == (29 * MIB, 29 * MIB)


def test_steps_that_torch_notes_are_taken(tmp_path: Path) -> None:
    writer = training(2)
    for event in writer.events:
        event["frames"] = []  # stacks="python" is off
    times = [1_000 + n for n, e in enumerate(writer.events) if e["size"] == 6 * MIB]
    for at, stage in zip(times[:2], ("START", "END"), strict=True):
        writer.annotations.append(
            {"name": "Optimizer.step#AdamW.step", "stage": stage, "time_us": at, "device": 0}
        )
    found = answer(writer, tmp_path)
    assert found.steps == 1 and not found.has_stacks


def test_blocks_of_torch_2_0_have_a_history(tmp_path: Path) -> None:
    frames = [{"name": "main", "filename": "train.py", "line": 10}]
    blocks = [
        {"size": 512, "requested_size": 100, "state": "active_allocated"}
        | {"history": [{"addr": BASE, "real_size": 100, "frames": frames}]},
        {"size": 2 * MIB - 512, "state": "inactive"},
    ]
    segment = {"device": 0, "address": BASE, "total_size": 2 * MIB, "stream": 0, "blocks": blocks}
    event = {"action": "snapshot", "addr": 0, "size": 5, "stream": 0}
    path = tmp_path / "old.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[event]]}))
    found = one(path)
    assert found.allocated_bytes == 512 and found.peak is None
    (held,) = found.at_end.blocks
    assert held.where is not None and held.where.line == 10


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickle.dumps({"a": 1}), 'it has no "segments"'),
        (pickle.dumps({"segments": [{"device": 0}]}), "KeyError"),
        (pickle.dumps({"segments": [1]}), "TypeError"),
        (pickle.dumps({"segments": [], "device_traces": [[1]]}), "not an event"),
        (pickle.dumps({"segments": [], "device_traces": 5}), "TypeError"),
        (
            pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": -5}]]}),
            "da",
        ),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": 1, "addr": "x"}]]}), "damag"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x1f\x8brest", "gunzip"),
        (b'{"segments": []}', "it is a text"),
        (b"", "empty"),
    ],
)
def test_files_that_are_no_snapshots(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    with pytest.raises(OomDoctorError) as raised:
        found = read_snapshot(path)
        [device_of(history_of(found, device)) for device in found.devices]
    assert raised.value.exit_code == 2 and why in raised.value.message
    assert "_dump_snapshot" in (raised.value.hint or "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OomDoctorError, match="No such file"):
        read_snapshot(tmp_path / "none.pickle")
    with pytest.raises(OomDoctorError, match="directory"):
        read_snapshot(tmp_path)
