"""The versions of the libraries that shape a simulation, without importing them.

Also run as a script by another interpreter, so it uses the standard library alone.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
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
_LIMIT_S = 20.0
EDITABLE = "editable"


def versions_here() -> dict[str, str]:
    """The versions in this interpreter; for a package from a repository, with its commit.

    A package that is installed from a folder where it may be edited has the version "editable".
    """
    found = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    found["machine"] = f"{platform.system()} {platform.machine()}"
    for name in _SHAPING:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        origin = package.read_text("direct_url.json") or ""
        editable = '"editable": true' in origin or '"dir_info"' in origin
        found[name] = EDITABLE if editable else f"{package.version} {origin}".strip()
    return found


def versions_of(python: str, environment: Mapping[str, str]) -> dict[str, str] | None:
    """The versions in an interpreter; None if it does not say, or if a package may be edited."""
    if python == sys.executable:
        found = versions_here()
    else:
        try:
            done = subprocess.run(
                [python, "-P", str(Path(__file__).resolve())],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=True,
                env=dict(environment),
            )
            found = {str(name): str(version) for name, version in json.loads(done.stdout).items()}
        except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
            return None
    return None if EDITABLE in found.values() else found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(versions_here()))
