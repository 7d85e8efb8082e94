"""The accuracy and peer benchmarks on few rows, so that they cannot rot.

What is asserted of the predictions holds for the libraries of the day only in so far as the old
code is adapted; the whole figures come from the scripts themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "scripts" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import cases  # noqa: E402
import measured  # noqa: E402
import peers  # noqa: E402
import published  # noqa: E402
from error_figures import figures_of  # noqa: E402

LORA = "fms-mistral7b-lora-1g-bs4"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, with one thread: the suite may run beside others."""
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.slow
def test_accuracy_of_one_row(tmp_path: Path) -> None:
    written = tmp_path / "errors.json"
    options = ("--only", LORA, "--processes", "1", "--json", "--write", str(written))
    ended = run("accuracy.py", *options)
    assert ended.returncode in (0, 3), ended.stderr
    answer = json.loads(ended.stdout)
    (row,) = answer["rows"]
    assert (row["id"], row["metric"], row["adaptations"]) == (LORA, "allocated", ["shifted logits"])
    assert abs(row["error"]) < 0.02  # 4 % too little without the adaptation
    (kind,) = json.loads(written.read_text())
    assert (kind["method"], kind["count"]) == ("lora", 1)


@pytest.mark.slow
def test_peers_are_compared_over_the_rows_that_we_answer(tmp_path: Path) -> None:
    ours = tmp_path / "ours.json"
    row = {"id": LORA, "metric": "allocated", "predicted_bytes": 27_000_000_000}
    ours.write_text(json.dumps({"rows": [row]}))
    ended = run("peers.py", "--only", LORA, "--ours", str(ours), "--json")
    assert ended.returncode == 0, ended.stderr
    us, rule = json.loads(ended.stdout)["tools"]
    assert (us["answers"], us["false_fits"], us["false_fits_any"]) == (1, 0, 0)
    assert rule["signed_median"] == pytest.approx(16 * 7_241_732_096 / 26_704_571_904 - 1, abs=1e-4)


def test_every_published_row_is_a_case_or_has_a_reason() -> None:
    rows = {case.id: case for case in published.published_cases()}
    assert len(rows) == 26
    left_out = {name for name, case in rows.items() if case.not_expressible}
    assert left_out == {"fms-mistral7b-gptqlora-1g-bs4", "torchao-l2-7b-ao8", "torchao-l2-7b-ao4"}


def test_a_published_row_is_expressed_as_it_ran() -> None:
    rows = {case.id: case for case in published.published_cases()}
    base, plain = rows["fms-mistral7b-qlora-base-1g-bs4"], rows["fms-mistral7b-qlora-acc-1g-bs4"]
    assert (base.config.kbit_prepare, plain.config.kbit_prepare) == ("norms", "none")
    assert base.config.lora_targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    # torch 1.10 keeps gradients: one micro-step stands as the second of two.
    bert = rows["hf-bert-large-bs4"]
    assert bert.config.accumulation_steps() == 2
    assert bert.readings[0].beside_bytes == 1343 * 1024**2


def fixture(folder: Path, *results: dict[str, Any]) -> None:
    report = {
        "model": {"id": "HuggingFaceTB/SmolLM2-135M"},
        "machine": {"gpu_name": "NVIDIA H200"},
        "budget": {"usable_bytes": 1 << 30},
        "results": list(results),
    }
    place = folder / "nvidia-h200"
    place.mkdir()
    (place / "smollm2-135m-s2048.json").write_text(json.dumps({"report": report}))


def result(**values: Any) -> dict[str, Any]:
    plain = {
        "label": "full-bf16",
        "config": {"micro_batch_size": "auto"},
        "outcome": "fits",
        "evidence": "measured",
        "micro_batch_size": 4,
        "peak_allocated_bytes": 1000,
        "peak_reserved_bytes": 2000,
    }
    return plain | values


def test_fixtures_give_readings_and_what_ran_out(tmp_path: Path) -> None:
    failed = result(label="broken", outcome="failed")
    fixture(tmp_path, result(), result(outcome="oom", micro_batch_size=None), failed)
    fits, ran_out = measured.measured_cases(tmp_path)
    assert fits.id == "nvidia-h200/smollm2-135m-s2048 full-bf16"
    assert [(r.metric, r.measured_bytes) for r in fits.readings] == [
        ("allocated", 1000),
        ("reserved", 2000),
    ]
    assert fits.config.micro_batch_size == 4
    assert (ran_out.readings, ran_out.ran_out_at_bytes) == ((), 1 << 30)
    assert ran_out.config.micro_batch_size == 1


@pytest.mark.slow
def test_a_rung_that_ran_out_is_a_false_fit_only_where_it_is_predicted_to_fit(
    tmp_path: Path,
) -> None:
    fixture(tmp_path, result(outcome="oom", micro_batch_size=1))
    (tight,) = measured.measured_cases(tmp_path)
    assert cases.predict(tight).fits_where_it_ran_out is False
    assert cases.predict(replace(tight, ran_out_at_bytes=100 << 30)).fits_where_it_ran_out is True


def test_figures_of_errors() -> None:
    figures = figures_of([-0.04, 0.01, 0.02, 0.01])
    assert figures.signed_median == pytest.approx(0.01)
    assert figures.absolute_median == pytest.approx(0.015)
    assert figures.p95 == pytest.approx(0.04)


def test_a_tool_without_an_answer_is_not_counted_against() -> None:
    (case,) = (case for case in published.published_cases() if case.id == LORA)
    key = (LORA, "allocated")
    line = peers.compared("tool", {key: None}, [case], {key})
    assert line == {"tool": "tool", "answers": 0, "asked": 1}
    ours = peers.compared("us", {key: case.readings[0].measured_bytes}, [case], {key})
    assert peers.ahead(ours, line)
    assert (ours["p95"], ours["false_fits_any"]) == (0.0, 0)
    far = peers.compared("far", {key: 1}, [case], {key})
    assert far["false_fits"] == 1
    assert not peers.ahead(far, ours)
