"""Scripts of others on the emulated GPU: what was reached, and is told."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from third import arithmetic, inputs, litgpt, sources, swept, vision
from third.rows import Row, Swept
from third.settings import with_settings
from third_party import (
    ALL,
    _changed,
    _keep,
    arithmetic_table,
    engine_table,
    judged,
    judged_reasons,
    judged_summary,
    judged_table,
    second_difference,
    swept_differences,
    swept_table,
    table,
)

ROOT = Path(__file__).parents[3]
READINGS = json.loads((ROOT / "tests" / "data" / "emulated" / "third_party.json").read_text())
KNOWN = {r["name"]: r for r in READINGS}
# torch 2.10 keeps this for cuBLASLt beside what it keeps for cuBLAS, and 2.12 does not.
LT_WORKSPACE = 1 << 20
# They compare trained weights, which no kernel computed.
NEED_VALUES = {"accelerate-test"}


# Their data ends before three steps.
SHORT = {"lightning", "torchtune-lora-distributed"}


def test_readings_are_of_rows() -> None:
    order = [row.name for row in ALL]
    assert len(set(order)) == len(order)
    assert [r["name"] for r in READINGS] == [name for name in order if name in KNOWN]


def test_all_ended_but_those_that_need_values() -> None:
    assert {r["name"] for r in READINGS if r["result"] != "ended"} == NEED_VALUES


def test_training_was_stopped_after_the_steps_that_were_asked_for() -> None:
    for r in READINGS:
        if r["steps_asked"] != "all" and r["name"] not in SHORT:
            steps = {rank["steps"] for rank in r["ranks"]}
            # Actor, critic, reference and engine are processes of their own.
            steps = {max(steps)} if "engine" in r else steps
            assert steps == {int(r["steps_asked"])}, r["name"]


def test_the_documentation_shows_them() -> None:
    page = (ROOT / "docs" / "emulation.md").read_text()
    parts = (table, engine_table, arithmetic_table, judged_table, swept_table)
    for part in (*parts, judged_summary, judged_reasons):
        assert part(READINGS) in page, part.__name__


def test_published_peaks_are_met() -> None:
    differences = [
        abs(difference) for r, _, difference in judged(READINGS) if not r["published"]["remark"]
    ]
    assert median(differences) <= 0.01
    assert max(differences) <= 0.05


def test_every_size_of_a_benchmark_is_met() -> None:
    known = [r for r in READINGS if "swept" in r and not r["swept"]["remark"]]
    assert sum(len(swept_differences(r)) for r in known) >= 100
    for r in known:
        assert max(map(abs, swept_differences(r))) <= 0.0001, r["name"]


def test_another_torch_needs_the_same_but_for_one_workspace() -> None:
    both = [r for r in READINGS if "second" in r]
    assert len(both) >= 40
    for r in both:
        assert r["second"]["result"] == r["result"], r["name"]
        more = second_difference(r)
        peak = max(rank["peak_allocated_bytes"] for rank in r["ranks"])
        assert more == LT_WORKSPACE or abs(more) < 0.01 * peak, r["name"]


def test_peaks_are_between_their_bounds_by_arithmetic() -> None:
    bounded = [r for r in READINGS if r["name"] in arithmetic.BOUNDS]
    assert len(bounded) == len(arithmetic.BOUNDS)
    assert [wrong for r in bounded if (wrong := arithmetic.outside(r))] == []
    less = {**bounded[0], "ranks": [{"peak_allocated_bytes": 5, "steps": 1}]}
    assert "5 is not between" in str(arithmetic.outside(less))


def test_each_row_is_judged_by_another_run_or_by_arithmetic() -> None:
    judges = ("second", "published", "swept")
    alone = {r["name"] for r in READINGS if not any(judge in r for judge in judges)}
    assert alone - set(arithmetic.BOUNDS) == {"accelerate-test", "accelerate-sync"}


def test_parameters_by_hand_are_those_of_the_models() -> None:
    """As their authors publish them; ViT's with ImageNet's classes."""
    assert arithmetic.BERT_PARAMETERS == 108_311_810
    assert arithmetic.VIT_PARAMETERS + 769 * 1000 == 86_567_656
    assert arithmetic.QWEN_PARAMETERS == 596_049_920
    derived = {name: bounds.derivation for name, bounds in arithmetic.BOUNDS.items()}
    assert derived["build-nanogpt"].startswith("124,475,904 ")
    assert derived["llm.c-reference"].startswith("124,439,808 ")
    assert derived["examples-mnist"].startswith("1,199,882 ")
    assert derived["run-translation"].startswith("60,506,624 ")
    assert derived["run-speech-seq2seq"].startswith("37,760,640 ")


def test_peaks_are_read_from_what_a_benchmark_wrote(tmp_path: Path) -> None:
    (tmp_path / "theirs.csv").write_text("size,kind,peak\n1,memory,2.0\n2,memory,4.0\n1,speed,9\n")
    (tmp_path / "own.csv").write_text("size,kind,peak\n1,memory,2.5\n1,speed,7\n")
    told = Swept((("own.csv", "theirs.csv"),), ("size",), "peak", 10, (("kind", "memory"),))
    reading = swept.read(told, tmp_path, tmp_path)
    assert reading["figures"] == [["1", 2.0, 2.5], ["2", 4.0, None]]
    assert json.loads(json.dumps(reading)) == reading  # as `--check` compares it
    assert swept_differences({"swept": reading}) == [0.25, math.inf]


def test_readings_are_of_what_the_rows_say_today() -> None:
    commands = {row.name: row.command for row in ALL}
    assert {r["name"]: r["command"] for r in READINGS} == {name: commands[name] for name in KNOWN}


def test_a_run_with_another_torch_is_kept_beside_the_first(tmp_path: Path) -> None:
    file, row = tmp_path / "kept.json", ALL[0].name
    (tmp_path / "torch-2.10.0.dist-info").mkdir()
    (tmp_path / "torch-2.10.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.10.0\n")
    first = {"name": row, "result": "ended", "ranks": [{"peak_allocated_bytes": 5}]}
    other = first | {"ranks": [{"peak_allocated_bytes": 7}]}
    _keep(first, file, None)
    _keep(other, file, tmp_path)
    _keep(first, file, None)
    (kept,) = json.loads(file.read_text())
    assert kept == first | {
        "second": {"torch": "2.10.0", "result": "ended", "ranks": other["ranks"]}
    }
    assert second_difference(kept) == 2
    assert not _changed([other], file, second=True)
    assert len(_changed([other], file, second=False)) == 1


@pytest.mark.parametrize(("name", "lines"), [("verl-grpo", 1), ("openrlhf-grpo", 0)])
def test_what_a_row_reserves_is_compared_unless_it_differs(
    tmp_path: Path, name: str, lines: int
) -> None:
    rank = {"rank": 0, "steps": 3, "peak_allocated_bytes": 1000, "peak_reserved_bytes": 2000}
    (tmp_path / "kept.json").write_text(
        json.dumps([{"name": name, "result": "ended", "ranks": [rank]}])
    )
    now = rank | {"peak_allocated_bytes": 1002, "peak_reserved_bytes": 3000}
    reading = {"name": name, "result": "ended", "ranks": [now]}
    assert len(_changed([reading], tmp_path / "kept.json", second=False)) == lines


def test_a_script_is_run_with_other_settings() -> None:
    text = "size = 4\nsteps = 128 // size\n"
    names: dict[str, object] = {}
    exec(compile(with_settings(text, {"size": "2"}), "script", "exec"), names)
    assert names["steps"] == 64
    with pytest.raises(KeyError, match="length"):
        with_settings(text, {"length": "1"})


def test_checkpoints_have_the_parameters_of_their_models() -> None:
    counts = [sum(math.prod(shape) for _, shape in litgpt.weights(m)) for m in litgpt.MODELS]
    assert counts == [1_418_270_720, 3_637_321_728, 6_738_415_616, 13_015_864_320]
    counts = [sum(math.prod(shape) for _, shape in each()) for each in (vision.large, vision.huge)]
    assert counts == [304_326_632, 630_764_800]  # as torchvision and timm have them


def test_inputs_are_the_same_at_each_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        inputs.make(tmp_path / name)
    files = [file for file in (tmp_path / "a").rglob("*") if file.is_file()]
    assert len(files) > 15
    for file in files:
        if file.suffix != ".safetensors":  # 2 GB of nothing
            other = tmp_path / "b" / file.relative_to(tmp_path / "a")
            assert file.read_bytes() == other.read_bytes()


def test_what_lit_gpt_reads_takes_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = litgpt.Shape("org/small", 400, 2, 64, 128, 512, head_bias=True)
    monkeypatch.setattr(litgpt, "MODELS", (small,))
    litgpt.make(tmp_path)
    import torch

    weights = torch.load(tmp_path / "checkpoints" / "org" / "small" / "lit_model.pth", mmap=True)
    assert {name: tuple(t.shape) for name, t in weights.items()} == dict(litgpt.weights(small))
    rows = torch.load(tmp_path / "alpaca" / "400" / "train.pt")
    assert max(len(row["input_ids"]) for row in rows) == 400


def _git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    command = ["git", *own, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_repository_is_checked_out_from_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    _git(clone, "init", "--quiet")
    (clone / "train.py").write_text("first")
    _git(clone, "add", ".")
    _git(clone, "commit", "--quiet", "--message", "first")
    commit = _git(clone, "rev-parse", "HEAD")
    (clone / "train.py").write_text("second")
    _git(clone, "commit", "--quiet", "--all", "--message", "second")
    row = Row("a", "", "train.py", "", "some/one", commit)
    monkeypatch.setattr(sources, "ROWS", (row,))
    monkeypatch.setattr(sources, "JUDGED", ())
    sources.fetch(tmp_path / "sources", {"some/one": clone})
    found = sources.script_of(row, Path(sys.executable), tmp_path / "sources")
    assert found is not None and found.read_text() == "first"


def test_a_repository_that_cannot_be_had_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ROWS", (Row("a", "", "a.py", "", "some/one", "0" * 40),))
    monkeypatch.setattr(sources, "JUDGED", ())
    with pytest.raises(SystemExit, match="--checkout some/one=FOLDER"):
        sources.fetch(tmp_path / "sources", {"some/one": tmp_path / "nothing"})
    with pytest.raises(SystemExit, match="no row is from other/one"):
        sources.fetch(tmp_path / "sources", {"other/one": tmp_path})
