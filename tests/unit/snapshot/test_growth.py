"""What grows in hand-made histories, and what it looks like."""

from __future__ import annotations

from pathlib import Path

import pytest
from growth import grows_no_faster
from snapshots import Writer, training

from oomdoctor.records.report.snapshot import SnapshotGrowth
from oomdoctor.snapshot.growth import growth_of
from oomdoctor.snapshot.history import History, history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.units import KIB, MIB


def history(writer: Writer, folder: Path) -> History:
    found = read_snapshot(writer.write(folder / "snapshot.pickle"))
    return history_of(found, found.devices[0])


def growth(writer: Writer, folder: Path, capacity: int | None = None) -> list[SnapshotGrowth]:
    return list(growth_of(history(writer, folder), capacity))


def kept(writer: Writer, folder: Path) -> list[SnapshotGrowth]:
    """Without fragmentation, which the simple segments of these histories have."""
    return [found for found in growth(writer, folder) if found.kind != "fragmentation"]


def test_a_line_that_keeps_tensors(tmp_path: Path) -> None:
    (found,) = growth(training(12, leak=3 * MIB), tmp_path)
    assert (found.kind, found.confidence, found.unit) == ("tensors", "high", "step")
    assert (found.bytes_per_step, found.steps, found.since_step) == (3 * MIB, 11, 2)
    assert found.total_bytes == 36 * MIB and found.full_at_step is None
    assert found.where is not None and found.where.line == 24
    assert [call.line for call in found.called_from] == [24]
    (line,) = found.lines
    assert (line.bytes, line.count, line.where) == (36 * MIB, 12, found.where)


def test_when_the_device_is_full(tmp_path: Path) -> None:
    writer = training(12, leak=3 * MIB)
    peak = max(history(writer, tmp_path).lives.allocated)
    (found,) = growth(writer, tmp_path, peak + 30 * MIB)
    assert found.full_at_step == 12 + 10
    (found,) = growth(writer, tmp_path, peak)
    assert found.full_at_step == 12


def test_it_may_start_late(tmp_path: Path) -> None:
    writer = training(20)
    for step in range(12):
        writer.alloc("activations", 24 * MIB, "forward")
        writer.alloc(f"kept {step}", MIB, "kept")
        writer.alloc("temporary", 6 * MIB, "optimizer")
        writer.free("activations", "temporary")
    (found,) = growth(writer, tmp_path)
    assert found.since_step == 21 and found.bytes_per_step == MIB


def test_a_graph_that_is_kept(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("weights", 8 * MIB, "load")
    for step in range(10):
        for layer in range(3):
            writer.alloc(f"activations {step} {layer}", 4 * MIB, "forward")
        writer.alloc(f"logits {step}", 2 * MIB, "loss")
        writer.alloc(f"embedding {step}", MIB, "embedding")
        writer.alloc("temporary", 6 * MIB, "optimizer")
        writer.free("temporary")
    (found,) = growth(writer, tmp_path)
    assert found.kind == "graph" and found.bytes_per_step == 15 * MIB
    assert found.where is not None and found.where.file == "model.py"
    assert [call.line for call in found.called_from] == [20]


def test_one_block_that_becomes_larger(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("found 0", MIB, "evaluation")
    for step in range(1, 12):
        writer.alloc("output", 20 * MIB, "forward")
        writer.free("output")
        writer.alloc(f"found {step}", (1 + step) * MIB, "evaluation")
        writer.free(f"found {step - 1}")
    (found,) = growth(writer, tmp_path)
    assert (found.unit, found.bytes_per_step) == ("pass", MIB)
    assert found.kind == "evaluation"


def test_longer_and_longer_rows_are_no_leak(tmp_path: Path) -> None:
    writer = Writer()
    for step in range(12):
        size = (step + 1) * MIB
        for name in ("forward", "embedding", "loss", "load"):
            writer.alloc(name, 2 * size, name)
        writer.alloc(f"output {step}", size, "kept")
        if step:
            writer.free(f"output {step - 1}")
        writer.free("forward", "embedding", "loss", "load")
        writer.alloc("temporary", 6 * MIB, "optimizer")
        writer.free("temporary")
    assert kept(writer, tmp_path) == []


def test_the_layers_of_one_pass_are_no_leak(tmp_path: Path) -> None:
    writer = Writer()
    writer.alloc("words", MIB, "kept")
    for layer in range(40):
        writer.alloc(f"layer {layer}", 4 * MIB, "forward")
    for layer in range(40):
        writer.alloc(f"gradient {layer}", 4 * MIB, "backward")
    writer.note("oom", 5 * MIB, 640 * MIB, "forward")
    assert growth(writer, tmp_path) == []


def test_what_a_caught_failure_leaves(tmp_path: Path) -> None:
    writer = training(3)
    writer.alloc("x", 100 * MIB, "forward")
    writer.note("oom", 5 * MIB, 640 * MIB, "forward")
    for step in range(4):
        writer.alloc(f"activations {step}", 24 * MIB, "forward")
        writer.free(f"activations {step}")
        writer.alloc("temporary", 6 * MIB, "optimizer")
        writer.free("temporary")
    (found,) = growth(writer, tmp_path)
    assert (found.kind, found.unit, found.steps) == ("exception", "failure", 1)
    assert found.bytes_per_step == 100 * MIB == found.total_bytes
    assert found.where is not None and found.where.file == "model.py"
    writer.free("x")
    assert growth(writer, tmp_path)  # later than two steps is as bad


def test_a_failed_batch_that_is_freed_is_no_leak(tmp_path: Path) -> None:
    writer = training(3)
    writer.alloc("x", 100 * MIB, "forward")
    writer.note("oom", 5 * MIB, 640 * MIB, "forward")
    writer.free("x")
    for _ in range(4):
        writer.alloc("activations", 24 * MIB, "forward")
        writer.free("activations")
        writer.alloc("temporary", 6 * MIB, "optimizer")
        writer.free("temporary")
    assert growth(writer, tmp_path) == []


def test_pieces_that_are_too_small(tmp_path: Path) -> None:
    writer = Writer()
    for step in range(12):
        size = (20 + 10 * step) * MIB
        writer.alloc("large", size, "forward")
        writer.alloc("temporary", 2 * MIB, "optimizer")
        writer.free("temporary", "large")
    (found,) = growth(writer, tmp_path)
    assert found.kind == "fragmentation" and found.where is None


@pytest.mark.parametrize("leak", [512, 4 * KIB])
def test_a_number_in_each_step_is_no_leak(tmp_path: Path, leak: int) -> None:
    assert kept(training(40, leak=leak), tmp_path) == []


def test_each_kind_has_words() -> None:
    from typing import get_args

    from oomdoctor.package_data import data_of
    from oomdoctor.records.report.snapshot import GrowthKind

    assert set(data_of("growth.toml")) == set(get_args(GrowthKind))


@pytest.mark.slow
def test_the_work_is_linear(tmp_path: Path) -> None:
    def work(steps: int) -> object:
        return growth_of(found[steps])

    found = {n: history(training(n, leak=64 * KIB), tmp_path) for n in (50, 200)}
    assert grows_no_faster(work, 50, 8)
