"""Where the scripts are: in an environment, and in checkouts of repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from third.rows import ROWS, Row

# torchtune's last release needs an older torchao than the others: a folder of the environment.
OLDER = "older"
HERE = Path(__file__).parent
SITE = ("import sysconfig; print(sysconfig.get_path('purelib'))",)


def make_environment(folder: Path) -> Path:
    """The interpreter of the environment; it is made if the folder has none. Needs a network."""
    python = folder / "bin" / "python"
    done = folder / ".made"
    if done.exists():
        return python
    print(f"making {folder}: about 1 GB of downloads", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-r", HERE / "requirements.txt", "wheel"], check=True)
    # It looks at torch when it is installed, which does not load without CUDA's libraries.
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "deepspeed==0.19.8"], check=True,
                   env={**os.environ, "DS_BUILD_OPS": "0"})  # fmt: skip
    subprocess.run([*pip, "--no-deps", "--target", folder / OLDER, "torchao==0.14.1"], check=True)
    done.touch()
    return python


def fetch(folder: Path) -> None:
    """Check out the repositories of the rows, each at its commit. Needs a network."""
    for repository, commit in sorted({(row.repository, row.commit) for row in ROWS}):
        target = checkout(folder, repository)
        if not repository or target.exists():
            continue
        url = f"https://github.com/{repository}"
        git = ["git", "-C", str(target)]
        subprocess.run(["git", "clone", "--filter=blob:none", "--no-checkout", url, target],
                       check=True)  # fmt: skip
        subprocess.run([*git, "sparse-checkout", "set", "--no-cone", "/*.py", "/examples", "/data"],
                       check=True)  # fmt: skip
        subprocess.run([*git, "checkout", "--quiet", commit], check=True)


def checkout(folder: Path, repository: str) -> Path:
    """The folder of a repository's checkout."""
    return folder / repository.replace("/", "+")


def script_of(row: Row, python: Path, sources: Path) -> Path | None:
    """The script of a row; None if it is not there."""
    if row.repository:
        found = checkout(sources, row.repository) / row.script
    else:
        words = [str(python), "-c", *SITE]
        site = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        found = Path(site) / (row.script or row.package)
    return found if found.exists() else None


def place(row: Row, script: Path, inputs: Path, folder: Path) -> Path:
    """The script beside the data that it looks for there, in the working directory."""
    for beside in (inputs / "beside").iterdir():
        (folder / beside.name).symlink_to(beside)
    if not row.repository.endswith("nanoGPT"):
        return script
    shutil.copytree(script.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(inputs / "shakespeare_char", folder / "data" / "shakespeare_char",
                    dirs_exist_ok=True)  # fmt: skip
    return folder / script.name
