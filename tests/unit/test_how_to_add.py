"""The diffs in docs/how-to-add.md are real: their context is in the files that they name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from oomdoctor.render.formats import format_names

ROOT = Path(__file__).parents[2]


def _hunks(section: str = "") -> list[tuple[str, list[str]]]:
    """(file, lines) of each part of a diff block, of the page or of what is said of `section`."""
    text = (ROOT / "docs" / "how-to-add.md").read_text(encoding="utf-8")
    if section:
        (text,) = re.findall(rf"^\*\*{section}\.\*\*.*?(?=^\*\*|^## )", text, re.M | re.S)
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("+++ b/"):
                found.append((line.removeprefix("+++ b/"), []))
            elif not line.startswith("--- "):
                found[-1][1].append(line)
    return found


def _text(lines: list[str], without: str) -> str:
    """The lines of a part, without those that it adds ("+") or takes away ("-")."""
    return "\n".join(line[1:] for line in lines if not line.startswith(without))


@pytest.mark.parametrize(("file", "lines"), _hunks(), ids=lambda value: str(value)[:50])
def test_the_context_is_in_the_file(file: str, lines: list[str]) -> None:
    before = _text(lines, "+")
    place = ROOT / file
    assert before in place.read_text(encoding="utf-8") if before else not place.exists()
    assert any(line.startswith("+") for line in lines)


def test_each_table_has_a_diff() -> None:
    files = {file for file, _ in _hunks()}
    tables = ("unsupported", "optimizers", "architectures", "attention", "dtypes")
    assert {f"oomdoctor/data/{name}.toml" for name in tables} <= files


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_key_of_a_rung_is_at_most_ten_files_and_no_golden(tmp_path: Path) -> None:
    """The diff of the example, applied to a copy in which all that is generated is made again."""
    for name in _files_of_git():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    _apply(_hunks("A key of a configuration"), tmp_path)
    for script in ("build_schema", "update_goldens", "build_docs"):
        _run(tmp_path, f"scripts/{script}.py")
    changed = sorted(_changed(tmp_path))
    assert "oomdoctor/data/report.schema.json" in changed and "docs/recipes.md" in changed
    assert not [file for file in changed if file.startswith("tests/data/")]
    assert len(changed) <= 9, changed  # and CHANGELOG.md
    tests = ("-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider")
    _run(tmp_path, *tests, "tests/unit/records/configuration")
    simulated = "tests/worker/training/techniques/test_methods.py"
    _run(tmp_path, *tests, "-k", "byte and noise", simulated)


def _files_of_git() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("needs a checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def _changed(folder: Path) -> Iterator[str]:
    """The files that differ from those of the checkout, or that it does not have."""
    for path in folder.rglob("*"):
        own, generated = ROOT / path.relative_to(folder), "__pycache__" in path.parts
        if path.is_file() and not generated and not (own.is_file() and _same(path, own)):
            yield str(path.relative_to(folder))


def _same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


PROGRAM = "litgpt"
_A_FILE = """
checkpoint_dir: Qwen/Qwen2.5-7B
precision: 32-true
train: {micro_batch_size: 2, global_batch_size: 8, max_seq_length: 1024}
"""
_BOTH_WAYS = f"""
from typing import get_args
import yaml
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.export import export
from oomdoctor.stacks.reading.finish import finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.rung import StackRung

def read(text):
    found = finished(draft_of([Document("train.yaml", yaml.safe_load(text))]))
    return found.files[0].format, found.model, found.config

own = TrainConfig(weights_dtype="float32", optimizer="adamw_torch_fused", micro_batch_size=2,
                  effective_batch_size=8, sequence_length=1024)
expected = ({PROGRAM!r}, "Qwen/Qwen2.5-7B", own)
assert read({_A_FILE!r}) == expected
assert {PROGRAM!r} in get_args(FormatName)
assert read(export(StackRung(own, "full", "Qwen/Qwen2.5-7B"), {PROGRAM!r})) == expected
"""


def test_a_program_is_few_files_and_works_both_ways(tmp_path: Path) -> None:
    """The diff of the example, applied to a copy: its file is recognized, read and written."""
    hunks = _hunks("A program")
    assert len({file for file, _ in hunks}) <= 4
    _applied(hunks, tmp_path)
    _run(tmp_path, "-c", _BOTH_WAYS)


def test_a_verb_is_few_files_and_has_a_page_in_every_format(tmp_path: Path) -> None:
    """The diff of the example, applied to a copy: the verb runs, and its page is everywhere."""
    hunks = _hunks()
    start = next(
        i for i, (_, lines) in enumerate(hunks) if "+from oomdoctor.cli.size import size" in lines
    )
    end = next(i for i, (file, _) in enumerate(hunks) if file.endswith("/size_page.py")) + 1
    assert len({file for file, _ in hunks[start:end]}) <= 4
    _applied(hunks[start:end], tmp_path)
    said = {name: _run(tmp_path, "-m", "oomdoctor", "size", "24GiB", "--format", name)
            for name in format_names()}  # fmt: skip
    assert "24.0 GiB" in said["table"] and "25,769,803,776" in said["markdown"]
    assert said["csv"] == "bytes\n25769803776\n"
    assert json.loads(said["json"])["command"] == "size"
    assert "24.0 GiB" in said.get("html", "24.0 GiB")
    assert "size" in _run(tmp_path, "-m", "oomdoctor", "--help")


def _applied(hunks: Sequence[tuple[str, list[str]]], folder: Path) -> None:
    """Copy the package to a folder, and apply parts of diffs to it."""
    shutil.copytree(ROOT / "oomdoctor", folder / "oomdoctor",
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    _apply(hunks, folder)


def _apply(hunks: Sequence[tuple[str, list[str]]], folder: Path) -> None:
    """Change the files of a copy; a part without context is a new file."""
    for file, lines in hunks:
        place = folder / file
        before, after = _text(lines, "+"), _text(lines, "-")
        text = place.read_text(encoding="utf-8").replace(before, after, 1) if before else after
        place.write_text(text.removesuffix("\n") + "\n", encoding="utf-8")


def _run(folder: Path, *words: str) -> str:
    """What Python prints with the package of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *words]
    return subprocess.run(
        command, check=True, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
    ).stdout
