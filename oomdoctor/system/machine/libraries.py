"""The libraries of an interpreter: their versions, what they require, and whether they import.

Also run as a script by another interpreter, so it uses the standard library alone.
"""

from __future__ import annotations

import importlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path

# Those that build a model, its adapter and its training step, or that their code asks for.
_SHAPING = (
    *("torch", "transformers", "accelerate", "peft", "bitsandbytes", "liger-kernel", "kernels"),
    *("flash-attn", "flash-attn-3", "triton", "numpy", "safetensors", "tokenizers"),
    *("huggingface-hub", "torchao", "torchvision", "xformers", "deepspeed", "apex", "einops"),
    *("mamba-ssm", "causal-conv1d", "flash-linear-attention", "fla-core", "timm", "sentencepiece"),
    *("trl", "datasets"),
)
# Parts of torch's CUDA build that a simulation, which runs on the CPU, may do without.
_CUDA_PARTS = ("nvidia-", "cuda-", "triton", "pytorch-triton")
_LIMIT_S = 20.0
EDITABLE = "editable"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare versions by."""
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])))


def versions_here() -> dict[str, str]:
    """The versions in this interpreter; for a package from a repository, with its commit.

    A package that is installed from a folder where it may be edited has the version "editable".
    """
    installed = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    installed["machine"] = f"{platform.system()} {platform.machine()}"
    for name in _SHAPING:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        origin = package.read_text("direct_url.json") or ""
        editable = '"editable": true' in origin or '"dir_info"' in origin
        installed[name] = EDITABLE if editable else f"{package.version} {origin}".strip()
    return installed


def versions_of(python: str, environment: Mapping[str, str]) -> dict[str, str] | None:
    """The versions in an interpreter; None if it does not say, or if a package may be edited."""
    if python == sys.executable:
        installed = versions_here()
    else:
        try:
            done = subprocess.run(
                [python, "-P", str(Path(__file__).resolve()), "here"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=True,
                env=dict(environment),
            )
            told = json.loads(done.stdout)
            installed = {str(name): str(version) for name, version in told.items()}
        except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
            return None
    return None if EDITABLE in installed.values() else installed


def versions(names: Iterable[str]) -> dict[str, str | None]:
    """The version of each library; None if it is missing."""
    installed: dict[str, str | None] = {}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = None
    return installed


def import_errors(names: list[str]) -> dict[str, str]:
    """Why libraries cannot be imported; those that are not installed are left out."""
    failed = {}
    for name in names:
        if versions([name])[name] is None:
            continue
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a library may raise anything
            failed[name] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return failed


def plain_requirements(name: str) -> list[str]:
    """What a library requires, without extras and without the parts of a CUDA build."""
    lines = [line.replace("(", "").replace(")", "") for line in metadata.requires(name) or []]
    return [
        line
        for line in lines
        if re.search(r"\bextra\s*==", line) is None and not line.lower().startswith(_CUDA_PARTS)
    ]


if __name__ == "__main__":
    question, words = sys.argv[1], sys.argv[2:]
    answers: dict[str, Callable[[], object]] = {
        "here": versions_here,
        "versions": lambda: versions(words),
        "imports": lambda: import_errors(words),
        "requires": lambda: plain_requirements(words[0]),
    }
    answer = answers[question]()
    sys.stdout.write("\n" + json.dumps(answer))
