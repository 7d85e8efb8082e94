"""Help is fast, complete, and loads nothing; the set of options is frozen on purpose."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import get_args

import pytest
import typer
from example_reports import error_report

from oomdoctor.cli.main import COMMANDS as VERBS
from oomdoctor.cli.options import PANELS, option_rows
from oomdoctor.cli.options.answer import FORMATS, AnswerOptions, RankOptions
from oomdoctor.cli.options.flatten import declared_types, leaves
from oomdoctor.cli.options.verbs import (
    ExplainOptions,
    LadderOptions,
    PlanOptions,
    ProbeOptions,
    ShowOptions,
)
from oomdoctor.records.codec import dumps
from oomdoctor.records.job.model import SourceChoice, TaskChoice
from oomdoctor.records.job.result import WeightsChoice
from oomdoctor.records.report.report import RankBy

COMMANDS = [
    ("--help",),
    *((verb, "--help") for verb in VERBS),
    *(("recipes", part, "--help") for part in ("show", "copy", "check")),
]
OPTIONS = {
    "probe": "from recipe gpus ranks nodes rung device emulate vram headroom seq-len "
    "effective-batch micro-batch lengths routing rows epochs tokenizer text-field task weights "
    "eval eval-batch snapshot trace rank-by tokens time-limit rung-timeout revision source "
    "trust-remote-code python fresh seed wait no-wait calibrate predict no-predict resume "
    "format json output verbose quiet help help-all",
    "plan": "gpu gpus min interconnect host-memory all-gpus min-vram sort price sweep why snapshot "
    "trace "
    "solve verify with from recipe rung lengths tokenizer text-field headroom seq-len "
    "effective-batch micro-batch task routing rows epochs rank-by tokens revision source "
    "trust-remote-code python fresh format json output verbose quiet help help-all",
    "triage": "since user all-users by json format output verbose quiet help",
    "explain": "model seq-len micro-batch config snapshot exact apply verify gpu remedy write "
    "python format json output verbose quiet help",
    "run": "emulate ranks steps weights values stop-at-oom cure max-peak breakdown why trace case "
    "report python verbose quiet help",
    "check": "only update against jobs junit format json output verbose quiet help",
    "snapshot": "gpu html png format json output verbose quiet help",
    "watch": "gpu json once verbose help",
    "show": "list zip html png svg chart rung format json output verbose help",
    "diff": "format json output verbose help",
    "runs": "model command since limit prune keep older-than max-size dry-run yes format json "
    "output help",
    "export": "to run from output quiet help",
    "recipes": "json help",
    "env": "json help",
    "gpus": "json help",
    "models": "json help",
}
COMMON = {
    "probe": "vram emulate from recipe gpus seq-len effective-batch micro-batch json",
    "plan": "gpu from recipe gpus seq-len effective-batch micro-batch all-gpus solve json",
    "explain": "model seq-len micro-batch config snapshot exact apply verify gpu json",
    "triage": "since user all-users by json",
    "show": "list json",
    "runs": "model command since limit json",
    "export": "to run from output quiet",
    "diff": "json",
    "watch": "gpu json",
    "run": "emulate steps ranks weights stop-at-oom cure max-peak breakdown why",
    "check": "only update against jobs json",
}
LONG = ("probe", "plan")
"""The commands that have --help-all."""
# What --help may load of our own: the command line, the table of formats, the two lowest rooms.
OURS = {
    "oomdoctor",
    "oomdoctor.cli",
    "oomdoctor.cli.help",
    *(f"oomdoctor.cli.{verb}" for verb in VERBS if verb not in ("gpus", "models")),
    "oomdoctor.cli.gpus_and_models",
    "oomdoctor.cli.main",
    "oomdoctor.cli.options",
    "oomdoctor.cli.options.answer",
    "oomdoctor.cli.options.completion",
    "oomdoctor.cli.options.verbs",
    "oomdoctor.cli.options.flatten",
    "oomdoctor.cli.streams",
    "oomdoctor.cli.streams.output",
    "oomdoctor.cli.streams.carry_out",
    "oomdoctor.errors",
    "oomdoctor.package_data",
    "oomdoctor.render",
    "oomdoctor.render.formats",
    "oomdoctor.records",
    "oomdoctor.records.facts",
    "oomdoctor.records.facts.choices",
    "oomdoctor.render.charts",
}
# typer, and what its versions bring along; the older ones import rich as soon as they are imported.
THEIRS = {"typer", "click", "shellingham", "typing_extensions", "annotated_doc"}
OLD_TYPER = tuple(map(int, typer.__version__.split(".")[:2])) < (0, 17)
THEIRS |= {"rich", "markdown_it", "mdurl", "pygments", "attr"} if OLD_TYPER else set()


LISTING = "from oomdoctor.cli.main import run; run('gpus H200 {}'.split())"
# A report, read from its JSON, in a format.
ERROR = dumps(error_report()).replace("{", "{{").replace("}", "}}")
ERROR_AS = f"""
from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
report = loads(Report, {ERROR!r})
render_report(report, "{{}}", Style(width=80))
"""


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_help_ends_with_examples_and_the_next_verb(cli, arguments):
    ended = cli(*arguments)
    assert ended.code == 0
    assert ended.err == ""
    tail = ended.out.rstrip().splitlines()[-9:]
    start = next(i for i, line in enumerate(tail) if line.strip() == "Examples:")
    assert all(line.startswith("    oomdoctor ") for line in tail[start + 1 : -1])
    assert len(tail[start + 1 : -1]) >= 2
    assert tail[-1].startswith("  Next: `oomdoctor ")


@pytest.mark.parametrize(
    ("command", "length", "batch"),
    [("plan", "2048", "16"), ("probe", "2048; 64 on the CPU", "16; 4 on the CPU")],
)
def test_each_verb_says_its_own_defaults(cli, command, length, batch):
    told = " ".join(cli(command, "--help").out.split())
    assert f"Tokens per sequence. [default: {length}]" in told
    assert f"the same for every configuration. [default: {batch}]" in told


@pytest.mark.parametrize("command", OPTIONS)
def test_the_set_of_options_is_frozen(cli, command):
    listed = [name for rows in sections(whole_help(cli, command)).values() for name in rows]
    assert sorted(listed) == sorted(OPTIONS[command].split())


@pytest.mark.parametrize(("command", "common"), COMMON.items())
def test_the_common_options_come_first(cli, command, common):
    found = sections(whole_help(cli, command))
    assert next(iter(found)) == "Common options"
    assert found["Common options"] == common.split()
    assert found.pop("Other options") == ["help"] + ["help-all"] * (command in LONG)
    assert "Options" not in found


def test_every_named_section_is_in_the_order_of_the_panels(cli):
    for command in COMMON:
        named = [name for name in sections(whole_help(cli, command)) if name != "Other options"]
        assert named == [name for name in PANELS if name in named]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_help_texts_are_whole_sentences(cli, monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "80")
    page = cli(*arguments).out
    assert "..." not in re.sub(r"\[(?:FILE\|JOB|FILE|WORD|ARGS)\]\.\.\.", "", page)
    assert "…" not in page
    assert max(map(len, page.splitlines())) <= 80
    lists = re.split(r"^\S.*:\n", page.partition("  Examples:")[0], flags=re.MULTILINE)[1:]
    rows = [row for part in lists for row in re.split(r"^  (?=\S)", part, flags=re.MULTILINE)[1:]]
    assert rows
    for row in rows:
        text = " ".join(row.split())
        # What typer 0.16 loses with a new click: the text of an argument.
        if not (OLD_TYPER and text == text.partition(" ")[0].upper()):
            assert re.search(r"\.(\s+\[default: .*\])?$", text), text


@pytest.mark.parametrize("command", LONG)
def test_a_command_with_many_options_shows_the_common_ones(cli, command):
    found = sections(cli(command, "--help").out)
    assert found == {
        "Common options": COMMON[command].split(),
        "Other options": ["help", "help-all"],
    }


def whole_help(cli, command: str) -> str:
    """The help of a command with all its options."""
    ended = cli(command, "--help-all" if command in LONG else "--help")
    assert ended.code == 0
    page: str = ended.out
    return page


def sections(page: str) -> dict[str, list[str]]:
    """The options on a page of help, long names without dashes, by section."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^(?=\S)", page.partition("  Examples:")[0], flags=re.MULTILINE):
        title, _, rows = part.partition(":\n")
        starts = re.findall(r"^  (?:-\w, )?--([a-z-]+)(?: / --([a-z-]+))?", rows, re.MULTILINE)
        if starts:
            found[title] = [name for pair in starts for name in pair if name]
    return found


def test_every_row_of_options_is_a_field_of_its_class() -> None:
    places = [importlib.import_module(name) for name in OURS if ".cli." in name]
    classes = {
        name.removesuffix("Options").lower(): kind
        for place in places
        for name, kind in vars(place).items()
        if name.endswith("Options") and is_dataclass(kind)
    }
    for name, rows in option_rows().items():
        if name not in ("gpus", "models", "recipes"):
            assert set(rows) <= {field.name for field in fields(classes[name])}
        for row in rows.values():
            assert row.get("panel") in (None, *PANELS)


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
    "page": "oomdoctor.render.ladder_page",
    "diagnosis": "oomdoctor.render.explain_page",
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
    assert "oomdoctor.records.report.report" not in loaded(LISTING.format(""))


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


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        (LadderOptions, "task", get_args(TaskChoice)),
        (LadderOptions, "source", get_args(SourceChoice)),
        (RankOptions, "rank_by", get_args(RankBy)),
        (ProbeOptions, "weights", get_args(WeightsChoice)),
        (AnswerOptions, "format_", FORMATS),
    ],
)
def test_help_names_every_word_of_the_choices(options, name, words):
    (info,) = declared_types(options)[name].__metadata__
    assert set(words) <= set(re.findall(r"[a-z0-9-]+", f"{info.metavar} {info.help}"))


def test_option_dataclasses_are_frozen_and_their_names_are_unique():
    for options in (ProbeOptions(), PlanOptions(), ExplainOptions(), ShowOptions()):
        names = [name for name, _ in leaves(options)]
        assert len(names) == len(set(names))
        with pytest.raises(FrozenInstanceError):
            options.verbose = True
