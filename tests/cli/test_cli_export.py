"""`export` from the command line, for a run on disk."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.analysis.ranking import in_order
from oomdoctor.cli.export import ExportOptions
from oomdoctor.cli.options import completion
from oomdoctor.cli.options.flatten import declared_types
from oomdoctor.commands.export import export_line, stack_rung, warning
from oomdoctor.system.store import run_folders


@pytest.fixture
def run(golden: Any) -> str:
    """The name of a stored run."""
    folder = run_folders.create("some-model")
    folder.write_request(golden("gpu").request)
    folder.write_report(golden("gpu"))
    return folder.name


def test_the_best_rung_is_written_to_stdout(cli: Any, golden: Any, run: str) -> None:
    ended = cli("export", "1", "--to", "trl")
    assert ended.code == 0
    ast.parse(ended.out)
    best = in_order(golden("gpu"))[0]
    assert best.key == golden("gpu").ranking[0]
    assert best.label in ended.out and run in ended.out
    assert cli("export", best.label, "--to", "trl", "--run", run).out == ended.out
    assert cli("export", best.key[:6], "--to", "trl").out == ended.out


@pytest.mark.usefixtures("run")
def test_a_file_is_written_and_nothing_to_stdout(cli: Any, tmp_path: Path) -> None:
    ended = cli("export", "1", "--to", "pytorch", "--output", str(tmp_path / "train.py"))
    assert (ended.code, ended.out) == (0, "")
    ast.parse((tmp_path / "train.py").read_text())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "which configuration"),
        (("1",), 2, "--to"),
        (("1", "--to", "keras"), 2, "'keras' is not one of"),
        (("99", "--to", "trl"), 2, "99 is not a configuration"),
        (("1", "--to", "trl", "--run", "nope"), 2, "nope is not a run"),
        (("1", "--to", "trl", "--output", "/no/such/folder/x"), 2, "does not exist"),
    ],
)
@pytest.mark.usefixtures("run")
def test_what_is_wrong_is_said(cli: Any, words: tuple[str, ...], code: int, said: str) -> None:
    ended = cli("export", *words)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err


def test_without_a_run_the_error_says_how_to_make_one(cli: Any) -> None:
    ended = cli("export", "1", "--to", "trl")
    assert ended.code == 2 and "oomdoctor probe MODEL" in ended.err


def test_a_rung_that_did_not_fit_is_written_with_a_warning(cli: Any, golden: Any, run: str) -> None:
    left = next(one for one in golden("gpu").results if one.outcome == "oom")
    ended = cli("export", left.label, "--to", "trainer", "--run", run)
    assert ended.code == 0 and "did not fit" in ended.err


AXOLOTL = """\
base_model: org/base
sequence_len: 1024
micro_batch_size: 2
gradient_accumulation_steps: 4
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
optimizer: adamw_bnb_8bit
flash_attention: true
my_own_setting: 5
"""


@pytest.mark.parametrize("program", ["", "axolotl:"])
def test_a_file_that_is_read_is_never_written_over(cli: Any, tmp_path: Path, program: str) -> None:
    file = tmp_path / "axolotl.yaml"
    file.write_text(AXOLOTL)
    words = ("--from", f"{program}{file}", "--to", "trl", "--output", str(file))
    ended = cli("export", *words)
    assert (ended.code, ended.out) == (2, "")
    assert "is a file of --from, which would be lost" in ended.err
    assert file.read_text() == AXOLOTL


def test_a_file_of_one_program_becomes_one_of_another(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "axolotl.yaml").write_text(AXOLOTL)
    ended = cli("export", "--from", str(tmp_path / "axolotl.yaml"), "--to", "trl")
    assert ended.code == 0, ended.err
    assert "org/base" in ended.out and "SEQUENCE_LENGTH = 1024" in ended.out
    assert "r=8" in ended.out and 'optim="adamw_bnb_8bit"' in ended.out
    assert "not taken: my_own_setting" in ended.err
    both = cli("export", "1", "--from", str(tmp_path / "axolotl.yaml"), "--to", "trl")
    assert both.code == 2 and "1 names nothing" in both.err


def test_a_run_offers_its_best_rung(golden: Any, run: str) -> None:
    report = golden("gpu")
    line = export_line(report, run)
    assert line == f"oomdoctor export 1 --to trl --run {run} > train.py"
    assert export_line(replace(report, results=(), ranking=()), run) is None
    near = replace(in_order(report)[0], borderline=True)
    assert export_line(replace(report, results=(near,), ranking=()), run) is None
    assert "borderline" in (warning(near) or "")
    assert report.model is not None
    other = replace(report, model=replace(report.model, task="masked-lm"))
    assert export_line(other, run) is None


def test_the_head_of_a_script_counts_pairs(golden: Any, run: str) -> None:
    report = golden("gpu")
    best = in_order(report)[0]
    size, length, whole = best.micro_batch_size, best.sequence_length, best.effective_batch_size
    usual = stack_rung(report, best, run).origin[0]
    assert usual == f"{size} x {length:,} tokens a forward pass, {whole} rows an optimizer step."
    config = replace(best.config, objective="dpo", loss="default")
    pairs = stack_rung(report, replace(best, config=config), run).origin[0]
    assert pairs == (
        f"{size} x 2 x {length:,} tokens a forward pass, {whole} pairs an optimizer step."
    )


def test_the_shell_offers_rungs_targets_and_runs(run: str, golden: Any) -> None:
    assert completion.places("")[0] == "1"
    assert {one.label for one in golden("gpu").results} <= set(completion.places(""))
    assert completion.places("zzz") == []
    assert declared_types(ExportOptions)["to"].__metadata__[0].autocompletion("tr") == [
        "trainer",
        "trl",
    ]
    assert run in completion.surveys("")
