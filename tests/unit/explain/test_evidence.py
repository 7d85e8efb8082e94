"""A memory snapshot and a log that describe the same failure."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from snapshots import Writer, training

from oomdoctor.commands.explain.explained import built_in, with_training
from oomdoctor.explain.diagnose import diagnose, diagnosis_of
from oomdoctor.explain.evidence import SnapshotEvidence, evidence_of
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.row import saving
from oomdoctor.explain.training.known import Given, setup_of
from oomdoctor.records.job.measurement import CategoryBytes
from oomdoctor.records.report.diagnosis import Diagnosis
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.units import MIB

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU 0 has a total "
    "capacity of 200.00 MiB of which 5.00 MiB is free.\n"
)
HELD = CategoryBytes(800, 400, 1600, 2000, 600, 100, 0)


def evidence(writer: Writer, path: Path) -> tuple[SnapshotEvidence, ...]:
    snapshot = read_snapshot(writer.write(path / "s.pickle"))
    return evidence_of(
        "s.pickle", [device_of(history_of(snapshot, device)) for device in snapshot.devices]
    )


def failed(path: Path, *, steps: int = 3, leak: int = 0) -> tuple[SnapshotEvidence, ...]:
    """A training that fails in the forward pass of one more step, for 64 MiB."""
    writer = training(steps, leak)
    writer.alloc("activations", 24 * MIB, "forward")
    writer.alloc("more activations", 40 * MIB, "forward")
    writer.note("oom", 5 * MIB, 64 * MIB, "forward")
    return evidence(writer, path)


def explained(seen: tuple[SnapshotEvidence, ...], requested: str = "64.00") -> Diagnosis:
    incidents, facts = scan(lines([MESSAGE.format(requested).encode()]))
    (found,) = diagnose("log", incidents, facts, Given(snapshots=seen))
    return found


def test_the_snapshot_names_the_cause_and_your_line(tmp_path: Path) -> None:
    found = explained(failed(tmp_path))
    assert (found.causes[0].cause, found.causes[0].confidence) == ("activations", "high")
    assert any("64.0 MiB in 2 blocks: model.py:33" in line for line in found.causes[0].evidence)
    assert found.where is not None and (found.where.file, found.where.line) == ("model.py", 33)
    assert found.phase == "forward"
    assert found.held is not None and found.held.activations_bytes == 64 * MIB
    freed = {remedy.change: remedy.frees_bytes for remedy in found.remedies}
    assert freed["Use a smaller micro-batch and accumulate more"] == 32 * MIB


def test_without_it_the_log_says_less() -> None:
    found = explained(())
    assert found.held is None and found.where is None


def test_another_failure_is_not_mixed_in(tmp_path: Path) -> None:
    assert explained(failed(tmp_path), requested="70.00").held is None


def test_equal_requests_are_told_apart_by_what_was_allocated(tmp_path: Path) -> None:
    few, many = failed(tmp_path), failed(tmp_path, leak=8 * MIB)
    text = MESSAGE.format("64.00")[:-1] + (
        " Including non-PyTorch memory, this process has 195.00 MiB memory in use. Of the allocated"
        f" memory {many[0].oom.allocated_bytes / MIB:.2f} MiB is allocated by PyTorch, and 1.00 MiB"
        " is reserved by PyTorch but unallocated.\n"
    )
    incidents, facts = scan(lines([text.encode()]))
    (found,) = diagnose("log", incidents, facts, Given(snapshots=(*few, *many)))
    assert found.held == many[0].held != few[0].held


def test_what_steps_leave_behind_is_the_cause(tmp_path: Path) -> None:
    (seen,) = failed(tmp_path, steps=12, leak=4 * MIB)
    first = diagnosis_of(seen).causes[0]
    assert (first.cause, first.confidence) == ("growth", "high")
    assert first.why.startswith("each step leaves about 4.00 MiB behind")
    assert first.evidence[0] == "made at train.py:24 in main"


def test_what_passes_without_an_optimizer_leave_behind_is_told_by_pass(tmp_path: Path) -> None:
    """It said "each optimizer step" of a script that has no optimizer."""
    writer = Writer()
    writer.alloc("weights", 8 * MIB, "load")
    for number in range(12):
        writer.alloc("activations", 24 * MIB, "forward")
        writer.free("activations")
        writer.alloc(f"kept {number}", 4 * MIB, "kept")
    writer.note("oom", 5 * MIB, 64 * MIB, "forward")
    (seen,) = evidence(writer, tmp_path)
    first = diagnosis_of(seen).causes[0]
    assert first.cause == "growth" and first.why.startswith("each pass leaves about 4.00 MiB")


@pytest.mark.parametrize(
    ("changes", "frees"),
    [
        ({"loss": "liger"}, 600),
        ({"activation_checkpointing": "full"}, 800),
        ({"micro_batch_size": 2}, 1300),
        ({"optimizer": "adamw_bnb_8bit"}, 800),
        ({"optimizer": "paged_adamw_8bit"}, 1600),
        ({"offload": "optimizer"}, 1600),
        ({"method": "lora", "master_weights": False}, 1900),
        ({"method": "qlora", "quantization": "nf4"}, 1900),
    ],
)
def test_a_change_frees_a_share_of_what_was_held(changes: dict[str, object], frees: int) -> None:
    found = saving(HELD, changes, batch=4)
    assert found is not None and found.frees_bytes == frees


@pytest.mark.parametrize(
    ("changes", "basis"),
    [
        ({"loss": "liger"}, "arithmetic"),
        ({"micro_batch_size": 2}, "arithmetic"),
        ({"optimizer": "adamw_bnb_8bit"}, "arithmetic"),
        ({"activation_checkpointing": "full"}, "rule"),
        ({"method": "lora"}, "rule"),
        ({"loss": "liger", "activation_checkpointing": "full"}, "rule"),
    ],
)
def test_a_rule_of_thumb_is_not_called_computed(changes: dict[str, object], basis: str) -> None:
    found = saving(HELD, changes, batch=4)
    assert found is not None and found.basis == basis


def test_what_4_bits_save_of_the_weights_depends_on_the_model() -> None:
    qlora = {"method": "qlora", "quantization": "nf4"}
    found = saving(HELD, qlora, batch=4)
    assert found is not None and found.at_least
    text = found.arithmetic or ""
    assert text.endswith("4-bit weights save more") and "of weights" not in text
    assert saving(CategoryBytes(800, 0, 0, 0, 0, 0, 0), qlora, batch=4) is None


def test_the_basis_reaches_the_remedy(tmp_path: Path) -> None:
    bases = {remedy.change: remedy.basis for remedy in explained(failed(tmp_path)).remedies}
    assert bases["Turn on activation checkpointing"] == "rule"
    assert bases["Use a smaller micro-batch and accumulate more"] == "arithmetic"


def test_a_change_of_something_else_is_not_known() -> None:
    assert saving(HELD, {"attention": "sdpa"}, batch=4) is None
    assert saving(HELD, {"micro_batch_size": 2}, batch=None) is None


def test_a_change_of_nothing_that_was_held_frees_nothing() -> None:
    empty = CategoryBytes(800, 0, 0, 2000, 0, 100, 0)
    found = saving(empty, {"method": "lora"}, batch=4)
    assert found is not None and found.frees_bytes == 0


def test_a_length_that_nothing_says_does_not_stand_against_a_snapshot(tmp_path: Path) -> None:
    """A usual length would have explained what was held, and what a change frees, by formula."""
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        'model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-360M")\n'
        'args = TrainingArguments("out", per_device_train_batch_size=8, bf16=True)\n'
    )
    bare = Given(model=built_in("HuggingFaceTB/SmolLM2-360M"))
    read, _ = with_training(bare, script, sys.executable, parse=False)
    assert setup_of(read, {}).values["sequence_length"] == 2048
    seen = failed(tmp_path)
    assert "sequence_length" not in setup_of(replace(read, snapshots=seen), {}).values
    message = MESSAGE.format("64.00").replace("200.00 MiB", "24.00 GiB")
    incidents, facts = scan(lines([message.encode()]))
    (found,) = diagnose("log", incidents, facts, replace(read, snapshots=seen))
    assert "unknown sequence length: pass --seq-len" in found.assumed
    remedies = {remedy.key: remedy for remedy in found.remedies}
    assert remedies["smaller_batch"].frees_bytes == 56 * MIB  # 7 of 8 rows of the activations
    assert "activations" in (remedies["smaller_batch"].arithmetic or "")
