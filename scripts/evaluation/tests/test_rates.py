"""Published times: which rows judge, what they are compared with, and what the docs say of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases.case import LeftOut
from cases.kernel_rates import judged_kernels
from cases.launched_rates import judged_launches
from cases.rated import Judged
from cases.rates import Rate, family_of, rows_of, training_rates
from rates import summary_of

ROOT = Path(__file__).parents[3]
STORED = json.loads((ROOT / "tests" / "data" / "judged_rates.json").read_text())
ROWS = rows_of()


def judged(predicted_s: float, measured_s: float, **other: Any) -> Judged:
    """A row of a source with two models' worth of defaults."""
    fields = {"id": "row", "kind": "training", "source": "s", "gpu": "g", "model": "m"}
    fields |= {"trust": "high", "spread": 0.2, "tokens": 1} | other
    return Judged(predicted_s=predicted_s, measured_s=measured_s, **fields)


def test_every_row_is_a_configuration_or_a_kernel_or_has_a_reason() -> None:
    answers = [*training_rates(ROWS), *judged_kernels(ROWS)]
    assert len(answers) == len(ROWS) == 1493
    reasons = [each.reason for each in answers if isinstance(each, LeftOut)]
    assert all(reasons)
    assert sum(isinstance(each, Judged) for each in answers) > 450
    assert sum(isinstance(each, Rate) for each in answers) > 300


def test_rows_of_low_trust_and_bounds_judge_nothing() -> None:
    rows = [judged(1.0, 1.1), judged(1.0, 9.0, trust="low"), judged(1.0, 5.0, bound=True)]
    summary = summary_of(rows, [])
    (kind,) = summary["kinds"]
    assert (kind["rows"], kind["absolute_median"], kind["near"]) == (1, 0.1, 1.0)
    assert (summary["bounds"]["rows"], summary["bounds"]["kept"]) == (1, 1)
    (counted,) = summary["bounds"]["if_counted"]
    assert (counted["rows"], counted["near"]) == (2, 0.5)
    assert [row["name"] for row in summary["trust"]] == ["high", "low"]


def test_runs_are_told_apart_by_their_kind_of_model() -> None:
    families = {family_of(row) for row in ROWS if row["kind"] == "train"}
    assert families == {
        "convolutional network",
        "encoder",
        "language model, LoRA",
        "language model, QLoRA",
        "language model, full",
        "vision transformer",
    }


@pytest.mark.parametrize("name", ["raschka-gpt2-124m-baseline", "lambda-results-V100-bert_base"])
def test_times_of_more_than_training_are_bounds(name: str) -> None:
    rates = [rate for rate in training_rates(ROWS) if isinstance(rate, Rate)]
    (first, *_) = (rate for rate in rates if rate.case.id.startswith(name))
    assert first.bound and not first.counts


def test_the_interval_has_the_published_time_or_not() -> None:
    assert judged(1.0, 1.2).is_covered
    assert not judged(1.0, 1.21).is_covered
    assert judged(2.0, 1.0).error == -0.5


def test_an_order_is_of_configurations_not_of_repeated_runs() -> None:
    same = [judged(1.0, 1.0 + n / 4, settings="a") for n in range(3)]
    others = [judged(2.0, 3.0, settings="b"), judged(3.0, 2.0, settings="c")]
    orders = summary_of([*same, *others], [])["orders"]
    assert (orders["surveys"], orders["lowest"][0]["rows"]) == (1, 3)
    assert orders["tau_b"] == pytest.approx(1 / 3, abs=1e-3)


def test_the_docs_show_all_rows() -> None:
    trusted = [row for row in STORED["trust"] if row["name"] != "low"]
    training = next(row for row in STORED["kinds"] if row["name"] == "training")
    assert sum(row["rows"] for row in trusted) == training["rows"]
    for name in ("families", "sources", "cards"):
        assert sum(row["rows"] for row in STORED[name]) == training["rows"]
    bounds_and_low = STORED["bounds"]["rows"] + _all_of_low_trust()
    kinds = sum(row["rows"] for row in STORED["kinds"])
    assert kinds + sum(STORED["left_out"].values()) + bounds_and_low == len(ROWS)


def test_the_docs_begin_with_how_far_off_training_runs_are() -> None:
    training = next(row for row in STORED["kinds"] if row["name"] == "training")
    page = (ROOT / "docs" / "how-the-numbers-are-made.md").read_text(encoding="utf-8")
    said = " ".join(page.partition("\n## ")[0].split())
    assert f"On {training['rows']} published runs on {len(STORED['cards'])} kinds of cards" in said
    assert f"it is {training['absolute_median']:.1%}, and {training['near']:.0%} of them" in said


def _all_of_low_trust() -> int:
    return int(STORED["low_trust"])


def test_a_row_whose_code_does_not_run_is_left_out_with_its_error(tmp_path: Path) -> None:
    for name in ("names", "launches", "calls"):
        (tmp_path / name).write_bytes(b"")
    case = {"id": "timm-vgg16-nchw-3090-bs384", "error": "RuntimeError: Unknown model"}
    (tmp_path / "cases.jsonl").write_text(json.dumps(case) + "\n")
    (left_out,) = judged_launches(ROWS, tmp_path)
    assert isinstance(left_out, LeftOut)
    assert left_out.reason == "its code does not run: RuntimeError: Unknown model"


@pytest.mark.slow
def test_a_run_is_predicted_and_recorded_once(script: Callable[..., Any], tmp_path: Path) -> None:
    options = ("--only", "raschka-gpt2-124m-sdpa-flash", "--recordings", str(tmp_path), "--json")
    first, second = (json.loads(script("rates", *options).stdout)["rows"] for _ in range(2))
    assert first == second
    (row,) = first
    assert row["measured_s"] == 0.08914
    assert len(list(tmp_path.iterdir())) == 1
