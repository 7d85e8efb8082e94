"""`show --html`, `--png` and `--svg`: what is written, where, and what is refused."""

from __future__ import annotations

import builtins
import json
import sys
from html import escape

import pytest
from example_gpu import gpu_report
from example_pages import everything

from oomdoctor.analysis.ranking import in_order


@pytest.fixture
def probed(cli, survey):
    """A run on disk: a probe of a GPU with every outcome."""
    survey.answer = gpu_report()
    cli("probe", "m")


def test_a_page_and_pictures_are_written_instead_of_the_answer(cli, probed, tmp_path) -> None:
    page, png, svg = (tmp_path / f"r.{end}" for end in ("html", "png", "svg"))
    ended = cli("show", "--html", str(page), "--png", str(png), "--svg", str(svg))
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"wrote {page} and {png} and {svg}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert png.read_bytes().startswith(b"\x89PNG") and "<svg" in svg.read_text()


def test_an_answer_that_is_asked_for_too_is_printed(cli, probed, tmp_path) -> None:
    page = tmp_path / "r.html"
    assert json.loads(cli("show", "--json", "--html", str(page)).out)["command"] == "probe"
    assert (
        "configs fit" in cli("show", "--output", str(tmp_path / "r.txt"), "--html", str(page)).out
    )


def test_the_step_of_any_rung_can_be_drawn(cli, survey, tmp_path) -> None:
    report = everything()
    survey.answer = report
    cli("probe", "m")
    svg, page = tmp_path / "step.svg", tmp_path / "r.html"
    drawn = {}
    for place in ("1", "2", in_order(report)[1].label):
        words = ("--rung", place, "--chart", "step", "--svg", str(svg), "--html", str(page))
        assert cli("show", *words).code == 0
        drawn[place] = svg.read_text()
        text = page.read_text()
        step = text[text.index('id="step"') :]
        at = {n: step.index(escape(in_order(report)[n - 1].label)) for n in (1, 2)}
        assert (at[2] < at[1]) == (place != "1")
    assert drawn["1"] != drawn["2"] == drawn[in_order(report)[1].label]
    without = next(one for one in report.results if one.measurement is None)
    ended = cli("show", "--rung", without.key, "--chart", "step", "--svg", str(svg))
    assert ended.code == 3 and f"the step of {without.label} was not followed" in ended.err


def test_the_page_may_go_to_stdout(cli, probed) -> None:
    ended = cli("show", "--html", "-")
    assert ended.code == 0 and ended.err == ""
    assert ended.out.startswith("<!DOCTYPE html>") and ended.out.count("<html") == 1


def test_the_ending_of_a_file_chooses_the_page(cli, probed, tmp_path) -> None:
    file = tmp_path / "report.html"
    assert cli("show", "--output", str(file)).code == 0
    assert file.read_text() == cli("show", "--format", "html").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--chart", "pie", "--png", "x.png"), "'pie' is not one of"),
        (("--chart", "memory"), "needs --png FILE or --svg FILE"),
        (("--html", "-", "--png", "-"), "only one file can be -"),
        (("--html", "-", "--json"), "stdout takes one answer"),
        (("--list", "--html", "x.html"), "no page"),
        (("--rung", "1", "--png", "x.png"), "needs --html FILE, or --chart step"),
        (("--rung", "99", "--html", "x.html"), "99 is not a configuration of the run"),
        (("--html", "no/such/folder/x.html"), "does not exist"),
        (("--png", "x.html"), "--png: x.html is the name of a file for --html"),
        (("--html", "x.PNG"), "--html: x.PNG is the name of a file for --png"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(cli, probed, words, said) -> None:
    ended = cli("show", *words)
    assert ended.code == 2 and said in ended.err
    assert ended.out == "" or "--json" in words


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
@pytest.mark.parametrize("words", [("--html", "x.html"), ("--format", "html")])
def test_a_missing_package_has_a_line_to_type(cli, probed, monkeypatch, package, words) -> None:
    real = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest)

    for name in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    ended = cli("show", *words)
    assert ended.code == 5 and package in ended.err
    assert 'pip install "oomdoctor[report]"' in ended.err


def test_a_run_that_is_not_there(cli) -> None:
    ended = cli("show", "no-such-run", "--html", "x.html")
    assert ended.code != 0 and "no-such-run" in ended.err


@pytest.mark.parametrize("words", [("--format", "html"), ("--output", "runs.html")])
def test_a_list_has_no_page(cli, words) -> None:
    ended = cli("runs", *words)
    assert ended.code == 2 and "no page for a browser" in ended.err
