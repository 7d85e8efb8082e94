"""What a release is made of: the script that checks it, and the workflow that runs the script."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from oomdoctor import __version__

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "release_check.sh"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
TOOLS = ("build", "twine", "hatchling")
OLD_TWINE = (
    importlib.util.find_spec("twine") is not None and int(version("twine").split(".")[0]) < 7
)


def check(folder: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run(
        [str(SCRIPT), str(folder)],
        env={**os.environ, "PYTHON": sys.executable, **changed},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in TOOLS), reason="no build tools"
)
@pytest.mark.skipif(OLD_TWINE, reason="twine 6 does not read the metadata of today's hatchling")
def test_a_release_is_built_and_checked(packages: Path, tmp_path: Path) -> None:
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    address = "https://github.com/owner/name"
    done = check(tmp_path, OOMDOCTOR_PROJECT_URL=address, OOMDOCTOR_PROJECT_REF="v9.8.7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "== checked" in done.stdout and done.stdout.count("PASSED") == 2
    names = {path.name for path in tmp_path.iterdir()} - {".gitignore"}
    wheel, sdist = f"oomdoctor-{__version__}-py3-none-any.whl", f"oomdoctor-{__version__}.tar.gz"
    assert names == {wheel, sdist, "oomdoctor.pyz"}
    inside = zipfile.ZipFile(tmp_path / wheel).namelist()
    assert any(name.endswith(".data/data/share/man/man1/oomdoctor.1") for name in inside)
    assert not [name for name in inside if re.match(r"(?:tests|docs|scripts)/", name)]
    with tarfile.open(tmp_path / sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    # Who builds from the sdist knows no address and gets the links all the same.
    unpacked = tmp_path / sdist.removesuffix(".tar.gz")
    core = ProjectMetadata(str(unpacked), PluginManager()).core
    assert core.urls["Source"] == address
    assert f"({address}/blob/v9.8.7/docs/explain.md)" in core.readme
    assert {"pyproject.toml", "LICENSE", "docs/man/oomdoctor.1", "recipes/quick.toml"} <= packed


@pytest.mark.parametrize(
    ("tag", "said"),
    [("v99.0.0", f"says {__version__}"), (f"v{__version__}", f"no section for {__version__}")],
)
def test_a_tag_must_agree_with_the_version_and_the_changelog(
    tag: str, said: str, tmp_path: Path
) -> None:
    if f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        pytest.skip("this version has a section")
    done = check(tmp_path, TAG=tag)
    assert done.returncode == 1 and said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_workflow_says_where_the_project_is() -> None:
    steps = workflow()["jobs"]["build"]["steps"]
    given = next(step["env"] for step in steps if "release_check" in step.get("run", ""))
    assert given["OOMDOCTOR_PROJECT_URL"] == ("${{ github.server_url }}/${{ github.repository }}")
    assert "github.ref_name" in given["OOMDOCTOR_PROJECT_REF"]


def workflow() -> dict[str, Any]:
    found = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_every_job_has_the_least_rights_and_an_end() -> None:
    found = workflow()
    assert found["permissions"] == {}
    for name, job in found["jobs"].items():
        rights = {right for right, level in job["permissions"].items() if level == "write"}
        allowed = {
            "attest": {"id-token", "attestations"},
            "publish": {"id-token"},
            "release": {"contents"},
        }
        assert rights == allowed.get(name, set()), name
        assert job["timeout-minutes"] <= 30, name


def test_nothing_is_published_before_it_is_checked_or_without_a_tag() -> None:
    jobs = workflow()["jobs"]
    steps = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert any(step.startswith("scripts/release_check.sh") for step in steps)
    for name, before in (("attest", "install"), ("publish", "attest"), ("release", "publish")):
        assert jobs[name]["needs"] == before
        assert jobs[name]["if"] == "github.ref_type == 'tag'"
    assert jobs["install"]["needs"] == "build"
    assert jobs["publish"]["environment"]["name"] == "pypi"


def test_actions_are_named_by_their_commit_and_no_secret_is_used() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert len(used) >= 8
    for action, rest in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", rest), action
    assert "secrets." not in text
    runs = [
        step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert not [run for run in runs if "${{" in run]  # a name of a tag must not become a command


def test_the_workflow_runs_the_oldest_python_that_is_supported() -> None:
    versions = workflow()["jobs"]["install"]["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={versions[0]}"' in project
