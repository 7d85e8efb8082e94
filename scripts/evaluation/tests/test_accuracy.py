"""The accuracy and peer benchmarks on few rows, so that they cannot rot.

What is asserted of the predictions holds for the libraries of the day only in so far as the old
code is adapted; the whole figures come from the scripts themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import accuracy
import peers
import pytest
from cases import case as case_module
from cases import measured, verdicts
from cases.case import Case, LeftOut, Reading
from cases.each_case import Fault, run_each
from cases.verdicts import Answer, Verdict
from figures.errors import figures_of
from published.rows import published_cases

ROOT = Path(__file__).parents[3]
EVALUATION = ROOT / "scripts" / "evaluation"

LORA = "fms-mistral7b-lora-1g-bs4"
GIB = 1 << 30


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script as people run it; the other tests use the `script` fixture."""
    return subprocess.run(
        [sys.executable, str(EVALUATION / script), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.slow
def test_accuracy_of_one_row() -> None:
    ended = run("accuracy.py", "--only", LORA, "--processes", "1", "--json")
    assert ended.returncode in (0, 3), ended.stderr
    answer = json.loads(ended.stdout)
    (row,) = answer["rows"]
    assert (row["id"], row["metric"], row["adaptations"]) == (
        LORA,
        "allocated",
        ["shifted logits", "lowest of equal blocks"],
    )
    assert abs(row["error"]) < 0.02  # 4 % too little without the adaptation
    (kind,) = answer["kinds"]
    assert (kind["method"], kind["count"]) == ("lora", 1)


@pytest.mark.slow
def test_peers_are_compared_over_the_rows_that_we_answer(script: Callable[..., Any]) -> None:
    ended = script("peers", "--only", LORA, "--json")
    assert ended.returncode == 0, ended.stderr
    us, rule = json.loads(ended.stdout)["tools"]
    assert (us["answers"], us["too_low"]) == (1, 0)
    assert [found["wrong"] for found in us["verdicts"]] == [0, 0, 0]
    assert rule["signed_median"] == pytest.approx(16 * 7_241_732_096 / 26_704_571_904 - 1, abs=1e-4)
    # Four times too much: right where it does not fit, wrong where it does.
    assert [found["wrong"] for found in rule["verdicts"]] == [0, 1, 1]


def row(name: str) -> Case:
    """A published row that is expressible."""
    (found,) = (case for case in published_cases() if case.id == name)
    assert isinstance(found, Case)
    return found


def test_every_published_row_is_a_case_or_has_a_reason() -> None:
    rows = list(published_cases())
    assert len(rows) == 26
    left_out = {case.id for case in rows if isinstance(case, LeftOut)}
    assert left_out == {"fms-mistral7b-gptqlora-1g-bs4", "torchao-l2-7b-ao8", "torchao-l2-7b-ao4"}


def test_a_published_row_is_expressed_as_it_ran() -> None:
    base, plain = row("fms-mistral7b-qlora-base-1g-bs4"), row("fms-mistral7b-qlora-acc-1g-bs4")
    assert (base.config.kbit_prepare, plain.config.kbit_prepare) == ("norms", "none")
    assert base.config.lora_targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    # nvidia-smi was read as well: 77256 MiB at full training.
    assert row("fms-mistral7b-full-1g-bs4").readings[0].device_bytes == int(75.45 * GIB)
    # torch 1.10 keeps gradients: one micro-step stands as the second of two.
    bert = row("hf-bert-large-bs4")
    assert bert.config.accumulation_steps() == 2
    assert bert.readings[0].beside_bytes == 1343 * 1024**2


def test_readings_that_depend_on_lengths_say_so() -> None:
    padded, short = row("swift-yi-34b-chat-lora-len2048"), row("litgpt-rt-l2-7b-none-mb1-1g")
    assert padded.lengths is not None and short.lengths is not None
    names = padded.adaptations
    assert accuracy.Row(padded, "reserved", 1, 1).adaptations == (*names, accuracy.DIFFERING)
    assert accuracy.Row(short, "allocated", 1, 1).adaptations == (
        "lit-gpt",
        "lowest of equal blocks",
    )


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
    assert case_module.predict(tight).fits_where_it_ran_out is False
    assert (
        case_module.predict(replace(tight, ran_out_at_bytes=100 << 30)).fits_where_it_ran_out
        is True
    )


def test_figures_of_errors() -> None:
    figures = figures_of([-0.04, 0.01, 0.02, 0.01])
    assert figures.signed_median == pytest.approx(0.01)
    assert figures.absolute_median == pytest.approx(0.015)
    assert figures.p95 == pytest.approx(0.04)


def answer(size: int, *fits: bool, in_doubt: bool = False) -> Answer:
    """A tool's figure and its verdicts on the three devices."""
    return Answer(size, tuple(Verdict(word, in_doubt) for word in fits))


def test_a_tool_without_an_answer_is_not_counted_against() -> None:
    case = row(LORA)
    asked, key = [(case, case.readings[0])], (LORA, "allocated")
    line = peers.compared("tool", {}, asked)
    assert line == {"tool": "tool", "answers": 0, "asked": 1}
    exact = answer(case.readings[0].measured_bytes, False, True, True)
    ours = peers.compared("us", {key: exact}, asked)
    assert peers.ahead(ours, line)
    assert (ours["p95"], ours["too_low_any"]) == (0.0, 0)
    far = peers.compared("far", {key: answer(1, True, True, True)}, asked)
    assert far["too_low"] == 1
    assert not peers.ahead(far, ours)


def test_wrong_verdicts_are_counted_by_whether_they_warn() -> None:
    case = row(LORA)
    asked, key = [(case, case.readings[0])], (LORA, "allocated")

    def counts(*fits: bool, in_doubt: bool = False) -> list[tuple[int, int, int]]:
        line = peers.compared("tool", {key: answer(1, *fits, in_doubt=in_doubt)}, asked)
        return [(v["wrong"], v["wrong_warned"], v["right_warned"]) for v in line["verdicts"]]

    assert counts(True, False, True) == [(1, 0, 0), (1, 0, 0), (0, 0, 0)]
    assert counts(True, False, True, in_doubt=True) == [(0, 1, 0), (0, 1, 0), (0, 0, 1)]


def test_devices_are_such_that_the_measurement_decides() -> None:
    case = row(LORA)
    seen = Reading("allocated", 20 * GIB, device_bytes=30 * GIB)
    less, more, most = verdicts.devices_of(case, seen)
    assert not less.holds and 0 < less.total_bytes - 0.98 * 20 * GIB < GIB  # a context
    assert more.holds and more.total_bytes == 33 * GIB
    assert most.total_bytes == 37.5 * GIB
    unseen = verdicts.devices_of(case, replace(seen, device_bytes=None))
    assert 22 * GIB < unseen[1].total_bytes < 24 * GIB


def test_the_headroom_is_that_of_the_command() -> None:
    from oomdoctor.cli.plan import plan

    assert signature(plan).parameters["headroom"].default == f"{verdicts.HEADROOM:.0%}"


def double(number: int) -> int:
    """Work that fails or ends its process for some numbers."""
    if number == 13:
        raise RuntimeError("unlucky\nand more")
    if number == 0:
        os._exit(9)
    return 2 * number


def test_a_case_that_fails_or_dies_ends_no_other() -> None:
    found = dict(run_each(double, [1, 13, 0, 4], processes=1))
    assert (found[1], found[4]) == (2, 8)
    assert found[13] == Fault("it failed: RuntimeError: unlucky and more")
    assert found[0] == Fault("its process died")
