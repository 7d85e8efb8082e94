"""Help is fast, complete, and loads nothing; the set of options is frozen on purpose."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
COMMANDS = [
    ("--help",),
    ("probe", "--help"),
    ("plan", "--help"),
    ("explain", "--help"),
    ("show", "--help"),
    ("recipes", "--help"),
    ("recipes", "show", "--help"),
    ("recipes", "copy", "--help"),
    ("recipes", "check", "--help"),
    ("env", "--help"),
    ("gpus", "--help"),
    ("models", "--help"),
]
OPTIONS = {
    "probe": "recipe rung device vram headroom seq-len effective-batch micro-batch lengths "
    "tokenizer text-field task weights "
    "eval eval-batch rank-by tokens time-limit rung-timeout revision source trust-remote-code "
    "python seed wait no-wait predict no-predict resume format json output verbose quiet help",
    "plan": "gpu all-gpus sweep why recipe rung lengths tokenizer text-field headroom seq-len "
    "effective-batch micro-batch task "
    "rank-by tokens revision source trust-remote-code python format json output verbose quiet help",
    "explain": "model seq-len micro-batch config format json output verbose quiet help",
    "show": "list format json output verbose help",
    "recipes": "json help",
    "env": "json help",
    "gpus": "json help",
    "models": "json help",
}
# What --help may load of our own: the command line, the table of formats, the two lowest rooms.
OURS = {
    "oomdoctor",
    "oomdoctor.cli",
    "oomdoctor.cli.commands",
    "oomdoctor.cli.env",
    "oomdoctor.cli.explain",
    "oomdoctor.cli.facts",
    "oomdoctor.cli.main",
    "oomdoctor.cli.options",
    "oomdoctor.cli.options.answer",
    "oomdoctor.cli.options.ladder",
    "oomdoctor.cli.options.planning",
    "oomdoctor.cli.options.probing",
    "oomdoctor.cli.options.reader",
    "oomdoctor.cli.streams",
    "oomdoctor.cli.streams.output",
    "oomdoctor.cli.plan",
    "oomdoctor.cli.probe",
    "oomdoctor.cli.recipes",
    "oomdoctor.cli.streams.running",
    "oomdoctor.cli.show",
    "oomdoctor.errors",
    "oomdoctor.render",
    "oomdoctor.render.formats",
    "oomdoctor.units",
}
# typer, and what its versions bring along; the older ones import rich as soon as they are imported.
THEIRS = {"typer", "click", "shellingham", "typing_extensions", "annotated_doc"}
OLD_TYPER = tuple(map(int, typer.__version__.split(".")[:2])) < (0, 17)
THEIRS |= {"rich", "markdown_it", "mdurl", "pygments", "attr"} if OLD_TYPER else set()


LISTING = "from oomdoctor.cli.main import run; run('gpus H200 {}'.split())"
# A stored report in a format.
ERROR_AS = f"""
from pathlib import Path
from oomdoctor.records.codec import loads
from oomdoctor.records.report import Report
from oomdoctor.render import render_report
report = loads(Report, Path({str(GOLDEN / "error.json")!r}).read_text())
render_report(report, "{{}}", terminal=False, width=80, color=False, verbose=False)
"""


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_help_ends_with_examples_and_the_next_verb(cli, arguments):
    ended = cli(*arguments)
    assert ended.code == 0
    assert ended.err == ""
    tail = ended.out.rstrip().splitlines()[-5:]
    start = next(i for i, line in enumerate(tail) if line.strip() == "Examples:")
    assert all(line.startswith("    oomdoctor ") for line in tail[start + 1 : -1])
    assert len(tail[start + 1 : -1]) >= 2
    assert tail[-1].startswith("  Next: `oomdoctor ")


@pytest.mark.parametrize("command", OPTIONS)
def test_the_set_of_options_is_frozen(cli, command):
    found = set(re.findall(r"(?<![\w-])--([a-z][a-z-]*)", cli(command, "--help").out))
    told = set(re.findall(r"--([a-z-]+)", cli(command, "--help").out.partition("Options:")[0]))
    assert found - told >= set(OPTIONS[command].split())
    listed = cli(command, "--help").out.partition("Options:")[2].partition("Examples:")[0]
    starts = re.findall(r"^  (?:-\w, )?--([a-z-]+)(?: / --([a-z-]+))?", listed, re.MULTILINE)
    starts += re.findall(r"^  -\w, --([a-z-]+)()", listed, re.MULTILINE)
    assert {name for pair in starts for name in pair if name} == set(OPTIONS[command].split())


def test_help_loads_nothing_but_typer_and_the_command_line():
    code = (
        "import sys; before = set(sys.modules)\n"
        "from oomdoctor.cli.main import run\n"
        "run(['--help'])\n"
        "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    assert {name for name in modules if name.split(".")[0] == "oomdoctor"} == OURS
    tops = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names)
    assert tops - {"oomdoctor"} <= THEIRS


RENDERERS = {
    "json": "oomdoctor.render.formats.json_document",
    "csv": "oomdoctor.render.formats.csv_rows",
    "markdown": "oomdoctor.render.formats.markdown",
    "table": "oomdoctor.render.formats.table",
    "page": "oomdoctor.render.report.page",
    "diagnosis": "oomdoctor.render.diagnosis.page",
}


@pytest.mark.parametrize(
    ("code", "renderers"),
    [
        (LISTING.format(""), {"table"}),
        (LISTING.format("--json"), {"table", "json"}),
        ("import oomdoctor.cli.streams.progress", set()),
        (ERROR_AS.format("json"), {"json"}),
        (ERROR_AS.format("csv"), {"csv"}),
        (ERROR_AS.format("markdown"), {"markdown", "page"}),
        (ERROR_AS.format("table"), {"table", "page"}),
    ],
)
def test_a_renderer_is_loaded_for_its_format_only(code, renderers):
    assert loaded(code) & set(RENDERERS.values()) == {RENDERERS[name] for name in renderers}


def test_a_listing_knows_nothing_of_reports():
    assert "oomdoctor.records.report" not in loaded(LISTING.format(""))


def loaded(code: str) -> set[str]:
    """The modules that a process has after running the code."""
    listed = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listed}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_probe_shows_life_before_anything_slow_is_loaded():
    # The time itself is measured by scripts/benchmarks/rung_overhead.py.
    code = (
        "import json, sys; before = set(sys.modules)\n"
        "class FirstWords:\n"
        "    def write(self, text):\n"
        "        print(json.dumps(sorted(set(sys.modules) - before)), flush=True)\n"
        "        import os; os._exit(0)\n"
        "    def flush(self): pass\n"
        "    def isatty(self): return False\n"
        "sys.stderr = FirstWords()\n"
        "from oomdoctor.cli.main import run\n"
        "run(['probe', 'x', '--format', 'no'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    assert {name for name in modules if name.split(".")[0] == "oomdoctor"} <= OURS
    tops = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names)
    assert tops - {"oomdoctor"} <= THEIRS


def test_version(cli):
    from oomdoctor import __version__

    assert cli("--version").out == f"oomdoctor {__version__}\n"


def test_nothing_typed_shows_the_help_on_stderr(cli):
    ended = cli()
    assert (ended.code, ended.out) == (2, "")
    assert "Usage: oomdoctor" in ended.err


def test_help_names_every_word_of_the_choices():
    from typing import get_args

    from oomdoctor.cli.options import answer, ladder, probing
    from oomdoctor.records.model import SourceChoice, TaskChoice
    from oomdoctor.records.report import RankBy
    from oomdoctor.records.result import WeightsChoice

    def told(option):
        (info,) = option.__metadata__
        return set(re.findall(r"[a-z0-9-]+", f"{info.metavar} {info.help}"))

    assert set(get_args(TaskChoice)) <= told(ladder.Task)
    assert set(get_args(SourceChoice)) <= told(ladder.Source)
    assert set(get_args(RankBy)) <= told(answer.RankBy)
    assert set(get_args(WeightsChoice)) <= told(probing.Weights)
    assert set(answer.FORMATS) <= told(answer.Format)
