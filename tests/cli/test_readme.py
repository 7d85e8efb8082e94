"""What README.md and docs/ show is what happens.

Tables, and console blocks behind `<!-- exact -->` or `<!-- stored: NAME -->`, are what
scripts/build_docs.py makes. A block behind `<!-- run -->` must run. All other lines that start with
`oomdoctor` are run with the survey and the plan replaced. Links and paths lead somewhere.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer
from example_runs import ran_out
from live_logs import gpu, live_log
from snapshots import training

from oomdoctor.records.codec import dumps
from oomdoctor.system.store.cases import cases_dir

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from build_docs import REPORTS, pages, renewed  # noqa: E402

PAGES = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages()}
BLOCK = re.compile(r"(?:<!-- (?P<mark>\w+).* -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)
BLOCKS = [match.groupdict() for text in PAGES.values() for match in BLOCK.finditer(text)]
RUN = [re.match(r"\$ (.*)\n", block["text"])[1] for block in BLOCKS if block["mark"] == "run"]
COMMANDS = sorted(
    {
        re.sub(r"^\$ |\s+#.*| > \S+(?=\s+#|$)| \|.*$", "", line)
        for block in BLOCKS
        if block["mark"] not in ("run", "exact")
        for line in block["text"].splitlines()
        if re.match(r"(\$ )?oomdoctor [a-z]", line) and block["kind"] != "text"
    }
)
CHECKS = (ROOT / "docs/examples/oomdoctor.toml").read_text()
ARGUMENT = ("| `MODEL`", "| `NAME`", "| `PATH`", "| `FILE`", "| `RUN\\|", "| `FILE\\|")
OLD_TYPER = tuple(map(int, typer.__version__.split(".")[:2])) < (0, 17)
# A path of the repository in backticks: folders end in a slash.
NAMED = re.compile(r"`((?:oomdoctor|scripts|tests|recipes|docs|\.ci)/[\w./*-]*)`")


def test_there_is_something_to_check():
    assert len(PAGES) >= 14
    assert len(COMMANDS) >= 25
    assert len(RUN) >= 1


@pytest.mark.parametrize("page", PAGES)
def test_tables_and_outputs_are_those_of_the_code(page):
    told = "run `python scripts/build_docs.py` and read the diff"
    assert comparable(renewed(PAGES[page])) == comparable(PAGES[page]), told


def comparable(page: str) -> list[str]:
    """The lines of a page, without arguments: a new click takes the help of an old typer's."""
    return [line for line in page.splitlines() if not (OLD_TYPER and line.startswith(ARGUMENT))]


@pytest.mark.parametrize("command", RUN)
def test_a_shown_command_runs(cli, command):
    ended = cli(*shlex.split(command)[1:])
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shown_command_is_accepted(cli, survey, planned, watched, command, tmp_path, monkeypatch):
    trace = (ROOT / "tests/data/explain/trace.txt").read_text()
    config = (ROOT / "tests/data/explain/train.yaml").read_text()
    recipe = (ROOT / "recipes/quick.toml").read_text()
    files = {"trace.txt": trace, "train.log": trace, "logs/*.out": trace, "mine.toml": recipe}
    files |= {"tests/data/explain/trace.txt": trace, "tests/data/explain/train.yaml": config}
    own = ROOT / "tests/data/stacks/files"
    files |= {
        "docs/examples/axolotl.yml": (ROOT / "docs/examples/axolotl.yml").read_text(),
        "train.py": (ROOT / "docs/examples/train.py").read_text(),
        "args.yaml": (own / "trainer.yaml").read_text(),
        "train.yaml": (own / "trainer.yaml").read_text(),
        **dict.fromkeys(("oomdoctor.toml", "docs/examples/oomdoctor.toml"), CHECKS),
        "accelerate.yaml": (own / "accelerate_zero3.yaml").read_text(),
    }
    # The libraries would take seconds for each command.
    monkeypatch.setattr(
        "oomdoctor.commands.user_training.checked", lambda documents, *_, **__: documents
    )
    monkeypatch.setattr("oomdoctor.commands.run.run_watched.verified", lambda *_: None)
    for name, text in files.items():  # no shell here that expands a star
        if "copy" not in command.split():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    for name in ("memory_snapshot", "before", "after"):
        training().write(tmp_path / f"{name}.pickle")
    if "copy" not in command.split():
        (tmp_path / "python").symlink_to(sys.executable)
        (tmp_path / "cuda" / "bin").mkdir(parents=True)
        (tmp_path / "cuda" / "bin" / "python").symlink_to(sys.executable)
    if command.startswith("oomdoctor show 2"):
        case = cases_dir() / command.split()[2]
        case.mkdir(parents=True)
        (case / "case.json").write_text(dumps(ran_out()))
    sacct = tmp_path / "sacct"
    row = f"7|me|OUT_OF_MEMORY|0:125||64G|1|8|gpu01|00:12:44|1-00:00:00|{tmp_path}"
    sacct.write_text(f"#!/bin/sh\necho '{row}|o|e|7|gpu|2026-11-23T06:00:00|a|sbatch a.sh'\n")
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    if command.startswith("oomdoctor runs"):
        cli("plan", "Qwen/Qwen2.5-0.5B", "--gpu", "T4")
    cli("probe", "m")  # so that there is a run to show
    if command.startswith("oomdoctor diff"):
        cli("probe", "m")  # and another one to compare it with
        report = (ROOT / "tests/data/golden/plan.json").read_text()
        for name in re.findall(r"\S+\.json", command):
            (tmp_path / name).write_text(report)
    live_log().rename(tmp_path / "memory.jsonl")
    live_log()  # and a training to watch
    monkeypatch.setattr("oomdoctor.commands.watch.list_gpus", lambda: (gpu(4711),))
    ended = cli(*shlex.split(command)[1:])
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("report", sorted(REPORTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_stored_report_is_shown_and_shows_no_machine(report):
    assert any(f"<!-- stored: {report.stem}" in text for text in PAGES.values())
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"/(?:root|tmp|work|home/(?!you/))", text)


def test_the_first_screen_of_the_readme_has_what_one_needs():
    lines = PAGES["README.md"].splitlines()
    assert len(lines) < 150
    first = "\n".join(lines[:60])
    assert "CUDA out of memory?" in first and "## Install" in first and "--no-deps" in first
    assert "Do this first" in "\n".join(lines[:70])


def test_each_verb_has_a_line_in_the_readme_and_a_page():
    from oomdoctor.cli.main import COMMANDS as VERBS

    for verb in VERBS:
        page = "gpus-and-models" if verb in ("gpus", "models") else verb
        assert f"(docs/{page}.md)" in PAGES["README.md"]
        assert f"<!-- generated: options {verb} -->" in PAGES[f"docs/{page}.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    prose = BLOCK.sub("", PAGES[page])
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        file, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        there = (ROOT / page).parent / file if file else ROOT / page
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_are_named_exist(page):
    for path in NAMED.findall(PAGES[page]):
        assert list(ROOT.glob(path.rstrip("/"))), path


def test_the_map_has_every_package():
    root = ROOT / "oomdoctor"
    packages = {str(file.parent.relative_to(root)) for file in root.rglob("__init__.py")} - {"."}
    text = PAGES["CONTRIBUTING.md"].partition("## The packages")[2].partition("## The flow")[0]
    drawn = text.partition("```")[2].partition("```")[0]
    named = set(re.findall(r"([a-z]\w+)/", drawn))
    assert named <= {package.rpartition("/")[2] for package in packages}
    assert {package.split("/")[1] for package in packages if package.count("/") == 1} <= named
    assert {each for each in packages if "/" not in each} <= set(re.findall(r"\w+", drawn))
    assert drawn.count("\n") <= 42


def test_the_index_links_every_page():
    for page in PAGES:
        folder, _, name = page.rpartition("/")
        if folder == "docs" and name != "index.md":
            assert f"({name})" in PAGES["docs/index.md"]


@pytest.mark.parametrize("script", ["demo", "test"])
def test_the_two_commands_are_there(script):
    assert f"./scripts/{script}.sh" in PAGES["README.md"]
    assert (ROOT / "scripts" / f"{script}.sh").stat().st_mode & 0o111
