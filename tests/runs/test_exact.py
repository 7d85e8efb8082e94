"""`explain --exact`: the training and its remedies are simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.reading.stream import lines
from oomdoctor.explain.training.known import Given
from oomdoctor.records.diagnosis import Diagnosis
from oomdoctor.records.model import ModelRef
from oomdoctor.runs.exact import unknown
from oomdoctor.system.models.hub import resolve
from oomdoctor.units import GIB

MESSAGE = (
    'File "train.py", line 7, in <module>\n    loss = model(**batch).loss\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total "
    "capacity of {} GiB of which 0.40 GiB is free. Including non-PyTorch memory, this process has "
    "3.60 GiB memory in use. Of the allocated memory 3.00 GiB is allocated by PyTorch, and 100.00 "
    "MiB is reserved by PyTorch but unallocated.\n"
)


def explained(capacity: str, *words: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "explain", "-", "--exact", "--json", *words],
        input=MESSAGE.format(capacity),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_remedies_are_simulated() -> None:
    document = explained("4.00", "--model", "gpt2", "--micro-batch", "16", "--seq-len", "1024")
    (found,) = document["diagnoses"]
    assert document["warnings"] == []
    peak = found["simulated_bytes"]
    assert peak > 4 * GIB
    simulated = [one for one in found["remedies"] if one["basis"] == "predicted"]
    assert len(simulated) >= 3
    for one in simulated:
        assert one["frees_bytes"] == max(0, peak - one["leaves_bytes"])
        assert one["enough"] == (one["leaves_bytes"] <= 4 * GIB)
    order = [one["enough"] for one in simulated]
    assert order == sorted(order, reverse=True)  # what is enough comes first
    batch = next(one for one in simulated if one["changes"].get("micro_batch_size"))
    assert batch["enough"] and batch["changes"]["micro_batch_size"] < 16


def test_without_a_model_sizes_are_computed_and_the_reason_is_said() -> None:
    document = explained("4.00")
    assert document["diagnoses"][0]["simulated_bytes"] is None
    (warning,) = document["warnings"]
    assert warning["code"] == "not_exact" and "--model MODEL" in warning["message"]


def diagnosed(**given: Any) -> Diagnosis:
    incidents, facts = scan(lines([MESSAGE.format("4.00").encode()]))
    model = resolve(ModelRef(name="gpt2", source="catalogue"))
    (found,) = diagnose("log", incidents, facts, Given(model=model, **given))
    return found


def test_what_a_simulation_has_to_know() -> None:
    known = diagnosed(micro_batch_size=4, sequence_length=512)
    assert unknown(known) is None
    assert known.config is not None and known.config.sequence_length == 512
    assert "--micro-batch N" in (unknown(diagnosed(micro_batch_size=4)) or "")
    sharded = diagnosed(
        micro_batch_size=4, sequence_length=512, settings={"zero_optimization": {"stage": 3}}
    )
    assert "sharded" in (unknown(sharded) or "")
    small = replace(known, numbers=replace(known.numbers, capacity_bytes=None))
    assert "how much memory" in (unknown(small) or "")
    assert "GPU memory" in (unknown(replace(known, resource="host")) or "")


def test_no_such_interpreter(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(MESSAGE.format("4.00"))
    words = ["explain", str(log), "--exact", "--python", "nowhere"]
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and "is not a program" in ended.stderr
