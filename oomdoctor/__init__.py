"""oomdoctor: which training configuration of a Hugging Face model fits this GPU, measured.

import oomdoctor
print(oomdoctor.estimate("Qwen/Qwen2.5-7B", training_args, gpu="RTX 4090"))
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
# What other programs use; __init__.pyi has its types.
_HOMES = {
    "Budget": "oomdoctor.library.budget",
    "Estimate": "oomdoctor.library.estimate",
    "OomDoctorError": "oomdoctor.errors",
    "Preflight": "oomdoctor.library.preflight",
    "estimate": "oomdoctor.library.estimate",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is asked for: commands must start fast."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
