"""Renew what README.md, CONTRIBUTING.md and docs/ take from the code, and the man page.

    python scripts/build_docs.py           # renew it
    python scripts/build_docs.py --check   # exit 1 and name the stale pages
    python scripts/build_docs.py --run     # run the commands of the stored reports first (minutes)
    python scripts/build_docs.py --run probe-cpu   # only this one
    python scripts/build_docs.py --run slurm       # those that start with slurm-, on a test cluster

- `<!-- generated: KIND ... -->` to `<!-- end -->` is a table of scripts/docs_reference.py.
- A console block below `<!-- exact -->` is what its command prints on a terminal.
- One below `<!-- stored: NAME -->` is the page of docs/reports/NAME.json. Its command takes long or
  needs other libraries than a test has, so it runs only on request. That of `run` takes the
  `python` on PATH, which needs a CUDA build of torch. `diff` compares plans with that of
  OOMDOCTOR_CUDA_PYTHON and with this one.
- One below `<!-- recorded: NAME -->` is what docs/examples/NAME.py printed when it ran on an
  emulated GPU; `--run NAME` runs it again, with the same `python`.

They take numbers, such as `<!-- exact; 1-2, 4 -->`: these paragraphs are shown, and
`...` stands for the others.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from docs_man import PAGE, man_page
from docs_recorded import record, recorded
from docs_reference import PARTS
from docs_slurm import slurm_reports

from oomdoctor.records.codec import from_json, loads
from oomdoctor.records.report.earlier_runs import StoredRun
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.render.runs_page import run_list

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "docs" / "reports"
WIDTH = 100
PART = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
CONSOLE = re.compile(
    r"(<!-- (?P<kind>exact|stored|recorded)(?:: (?P<name>[\w-]+))?(?:; (?P<chosen>[\d, -]+))? -->\n"
    r"```console\n\$ (?P<command>[^\n]*)\n)(?:.*?)(```)",
    re.DOTALL,
)
# Nothing of the developer's machine shows in a page.
PLAIN = {
    "COLUMNS": str(WIDTH),
    "NO_COLOR": "1",
    "TERM": "xterm",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
STATE = "/home/you/.local/state"
WORK = "/home/you/train"
VENV = "/home/you/venv"


def main(arguments: list[str]) -> int:
    """Renew or check every page."""
    if "--run" in arguments:
        run_stored(arguments[arguments.index("--run") + 1 :])
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    stale = {page: new for page, old in texts.items() if (new := renewed(old)) != old}
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != man_page():
        stale[PAGE] = man_page()
    for page, new in stale.items():
        print(page.relative_to(ROOT))
        if "--check" not in arguments:
            page.write_text(new, encoding="utf-8")
    return int(bool(stale) and "--check" in arguments)


def pages() -> list[Path]:
    """The pages that a person reads."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def renewed(text: str) -> str:
    """A page with its tables and outputs as the code has them now."""

    def table(found: re.Match[str]) -> str:
        kind, *words = found[2].split()
        return f"{found[1]}{PARTS[kind](*words)}\n{found[3]}"

    def console(found: re.Match[str]) -> str:
        match found["kind"]:
            case "exact":
                said = printed(found["command"])
            case "recorded":
                said = recorded(found["name"], WIDTH)
            case _:
                verbose = "--verbose" in found["command"].split()
                said = page_of(found["name"], verbose=verbose)
        return f"{found[1]}{paragraphs(said, found['chosen'])}```"

    return CONSOLE.sub(console, PART.sub(table, text))


def printed(command: str) -> str:
    """What a command prints on a terminal, errors below the answer."""
    from oomdoctor.cli.main import run

    class Terminal(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def isatty(self) -> bool:
            return True

    answer, errors = Terminal(), io.StringIO()
    with _environment(PLAIN), redirect_stdout(answer), redirect_stderr(errors):
        os.chdir(ROOT)
        run(shlex.split(command)[1:])
    return answer.getvalue() + errors.getvalue()


def page_of(name: str, *, verbose: bool = False) -> str:
    """The page of a stored report on a terminal."""
    text = (REPORTS / f"{name}.json").read_text(encoding="utf-8")
    style = Style(terminal=True, width=WIDTH, verbose=verbose)
    document = json.loads(text)
    if document["command"] == "runs":
        rows = [from_json(StoredRun, row) for row in document["runs"]]
        return run_list("runs", rows).text("table", style)
    return render_report(loads(Report, text), "table", style)


def paragraphs(text: str, chosen: str | None) -> str:
    """The chosen paragraphs of a page, counted from 1, with `...` for those between and behind."""
    parts = [part.strip("\n") for part in re.split(r"\n\s*\n", text.rstrip())]
    numbers = set(_numbers(chosen)) if chosen else set(range(1, len(parts) + 1))
    kept: list[str] = []
    for number, part in enumerate(parts, 1):
        if number in numbers:
            kept.append("\n".join(line.rstrip() for line in part.splitlines()))
        elif kept[-1:] != ["..."]:
            kept.append("...")
    return "\n\n".join(kept) + "\n"


def _numbers(chosen: str) -> Iterator[int]:
    for part in chosen.split(","):
        first, _, last = part.strip().partition("-")
        yield from range(int(first), int(last or first) + 1)


def run_stored(names: list[str]) -> None:
    """Run the commands of the named stored reports, or of all, and keep their JSON.

    `slurm` names all those that need a cluster; without names, they are left out.
    """
    REPORTS.mkdir(exist_ok=True)
    found = [m for page in pages() for m in CONSOLE.finditer(page.read_text(encoding="utf-8"))]
    stored = {m["name"]: m["command"] for m in found if m["kind"] != "exact"}
    examples = {m["name"] for m in found if m["kind"] == "recorded"}
    if names == ["slurm"]:
        with tempfile.TemporaryDirectory() as folder:
            slurm = {name: line for name, line in stored.items() if name.startswith("slurm-")}
            for name, text in slurm_reports(slurm, Path(folder)).items():
                _keep(name, text, {f"{folder}/jobs": WORK, f"{folder}/state": STATE})
        return
    for name in names or [name for name in stored if not name.startswith("slurm-")]:
        command = stored[name]
        print(command, file=sys.stderr)
        if name in examples:
            record(name, PLAIN)
            continue
        with tempfile.TemporaryDirectory() as state:
            answer = Path(state) / "report.json"
            words = shlex.split(command)
            asks = ["--json", "--quiet", "--output", str(answer)]
            if words[1] == "run":  # its own output is that of the script, which `python` runs
                asks = ["--quiet", "--report", str(answer)]
            if words[1] in ("diff", "runs"):
                asks.remove("--quiet")
                _earlier_runs(Path(state), words)
            end = words.index("--") if "--" in words else len(words)
            subprocess.run(
                [sys.executable, "-m", *words[:end], *asks, *words[end:]],
                env={**os.environ, **PLAIN, "XDG_STATE_HOME": state, "PYTHONPATH": str(ROOT)},
                cwd=state if words[1] == "diff" else ROOT,
                stdout=subprocess.DEVNULL,
                check=False,
            )
            _keep(name, answer.read_text(encoding="utf-8"), {state: STATE})


def _earlier_runs(folder: Path, line: list[str]) -> None:
    """The runs that `diff` compares and `runs` lists.

    Of `diff` with names, files of a plan with the torch of OOMDOCTOR_CUDA_PYTHON and with that of
    here; without, two stored runs of the tutorial. Of `runs`, two plans and a command that ran out.
    """
    card, names = "RTX 4090", line[2:]
    quick = ["plan", "Qwen/Qwen2.5-1.5B", "--recipe", "quick", "--gpu"]
    if line[1] == "runs":
        script = str(ROOT / "docs" / "examples" / "train.py")
        emulated = ["--emulate", card, "--weights", "synthetic", "--", "python", script]
        asked = [[*quick, "T4"], ["run", *emulated], [*quick, card]]
    elif names:
        pythons = os.environ["OOMDOCTOR_CUDA_PYTHON"], sys.executable
        model = ["plan", "Qwen/Qwen2.5-0.5B", "--gpu", card]
        asked = [
            [*model, "--python", python, "--output", str(folder / name)]
            for name, python in zip(names, pythons, strict=True)
        ]
    else:
        asked = [[*quick, card, "--seq-len", length] for length in ("2048", "4096")]
    for words in asked:
        subprocess.run(
            [sys.executable, "-m", "oomdoctor", words[0], "--quiet", *words[1:]],
            env={**os.environ, **PLAIN, "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            check=False,
        )


def _keep(name: str, text: str, ours: Mapping[str, str]) -> None:
    """Store a report without the paths of this machine."""
    python = Path(shutil.which("python") or sys.executable)
    paths = {**ours, sys.executable: "/usr/bin/python3", f"{ROOT}/": ""}
    for found, shown in {**paths, str(python.parent.parent): VENV, sys.prefix: VENV}.items():
        text = text.replace(found, shown)
    (REPORTS / f"{name}.json").write_text(text, encoding="utf-8")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before, folder = dict(os.environ), Path.cwd()
    os.environ.update(values)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
