"""Where the scripts are: in an environment, and in checkouts of repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from environments import make_once

from third.judged import JUDGED
from third.rows import ROWS, Row

HERE = Path(__file__).parent
BUILT_WITH_TORCH = "flash_attn"  # it looks at the torch of the interpreter that installs it


def _set(file: Path) -> tuple[str | Path, ...]:
    """What pip is given for a set of packages in a file."""
    with_torch = BUILT_WITH_TORCH in file.read_text()
    return (*(("--no-build-isolation",) if with_torch else ()), "-r", file)


# Some rows need other versions, or more. Each set is a folder in `older` of the environment.
OLDER: dict[str, tuple[str | Path, ...]] = {
    "torchao": ("torchao==0.14.1",),  # torchtune's last release
    "transformers": ("transformers==4.44.2", "tokenizers==0.19.1", "huggingface_hub==0.24.7"),
    # Frameworks that pin what they use.
    **{
        file.stem.removeprefix("requirements-"): _set(file)
        for file in sorted(HERE.glob("requirements-*.txt"))
    },
}
# Only flash-attn's Python code is built: OpenRLHF imports that, and computes attention with torch.
BUILD = {
    "DS_BUILD_OPS": "0",
    "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
    "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE",
}
# The same run on another torch, which is the last for CUDA 12 where the first is for CUDA 13.
SECOND = ("torch==2.10.0", "torchvision==0.25.0", "triton==3.6.0")
SITE = ("import sysconfig; print(sysconfig.get_path('purelib'))",)


def make_environment(folder: Path) -> Path:
    """The interpreter of the environment; it is made if the folder has none. Needs a network."""
    steps = [
        ("--no-deps", "-r", HERE / "requirements.txt", "wheel"),
        # It looks at torch when it is installed, which does not load without CUDA's libraries.
        ("--no-deps", "--no-build-isolation", "deepspeed==0.19.8"),
        *(
            ("--no-deps", "--target", folder / "older" / name, *older)
            for name, older in OLDER.items()
        ),
    ]
    return make_once(folder, steps, BUILD)


def make_second(python: Path, folder: Path) -> None:
    """Install another torch in a folder that does not exist yet. Needs a network."""
    half = folder.with_name(folder.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", half, *SECOND]
    if subprocess.run(pip, env={**os.environ, "PYTHONPATH": ""}, check=False).returncode:
        raise SystemExit(f"error: pip could not install {', '.join(SECOND)}")
    half.rename(folder)


def fetch(folder: Path, local: Mapping[str, Path]) -> None:
    """Check out the repositories of the rows, each at its commit.

    A repository that `local` names is cloned from there, the others from GitHub. Ends the program
    with an error if one cannot be had.
    """
    wanted = {(row.repository, row.commit) for row in ROWS + JUDGED if row.repository}
    if unknown := sorted(set(local) - {repository for repository, _ in wanted}):
        raise SystemExit(f"error: no row is from {', '.join(unknown)}")
    for repository, commit in sorted(wanted):
        target = checkout(folder, repository, commit)
        if target.exists():
            continue
        remote = ("--filter=blob:none", f"https://github.com/{repository}")
        source = (local[repository],) if repository in local else remote
        half = target.with_name(target.name + ".part")
        shutil.rmtree(half, ignore_errors=True)
        _git("clone", "--quiet", "--no-checkout", *source, half, of=repository)
        _git("-C", half, "checkout", "--quiet", commit, of=repository)
        half.rename(target)


def _git(*words: str | Path, of: str) -> None:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    if subprocess.run(["git", *words], env=environment, check=False).returncode:
        hint = f"--checkout {of}=FOLDER takes it from a clone on this machine"
        raise SystemExit(f"error: git could not check out {of}; {hint}")


def checkout(folder: Path, repository: str, commit: str) -> Path:
    """The folder of a repository's checkout at a commit."""
    return folder / f"{repository.replace('/', '+')}@{commit[:8]}"


def script_of(row: Row, python: Path, sources: Path) -> Path | None:
    """The script of a row; None if it is not there."""
    if row.repository:
        found = checkout(sources, row.repository, row.commit) / row.script
    else:
        words = [str(python), "-c", *SITE]
        site = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        older = (python.parents[1] / "older" / name for name in row.older.split())
        places = (*older, Path(site))
        files = [place / (row.script or row.package) for place in places]
        found = next((file for file in files if file.exists()), files[-1])
    return found if found.exists() else None


def place(row: Row, script: Path, inputs: Path, folder: Path) -> Path:
    """The script, with the data beside it that it looks for there.

    Data is found in the working directory and in `data` there, and one and two folders above.
    """
    for beside in (inputs / "beside").iterdir():
        if beside.name != "data":
            (folder / beside.name).symlink_to(beside)
    for above in (folder, *folder.parents[:2]):
        (above / "data").mkdir(exist_ok=True)
        for data in (inputs / "beside" / "data").iterdir():
            if not (above / "data" / data.name).exists():
                (above / "data" / data.name).symlink_to(data)
    if not row.beside:
        return script
    shutil.copytree(script.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    return folder / script.name
