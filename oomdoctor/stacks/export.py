"""The targets of `export`: one row each, with the module that writes it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomdoctor.stacks.rung import StackRung


@dataclass(frozen=True, slots=True)
class Target:
    """A program to write for. `module` has `render(rung) -> str`; `file` is a usual file name."""

    name: str
    module: str
    file: str


TARGETS = (
    Target("trainer", "oomdoctor.stacks.scripts.trainer", "train.py"),
    Target("trl", "oomdoctor.stacks.scripts.trl", "train.py"),
    Target("pytorch", "oomdoctor.stacks.scripts.pytorch", "train.py"),
    Target("unsloth", "oomdoctor.stacks.scripts.unsloth", "train.py"),
    Target("accelerate", "oomdoctor.stacks.writing.accelerate", "accelerate.yaml"),
    Target("deepspeed", "oomdoctor.stacks.writing.deepspeed", "ds.json"),
    Target("axolotl", "oomdoctor.stacks.writing.axolotl", "train.yaml"),
    Target("llama-factory", "oomdoctor.stacks.writing.llama_factory", "train.yaml"),
    Target("torchtune", "oomdoctor.stacks.writing.torchtune", "train.yaml"),
)


def target_names() -> tuple[str, ...]:
    """What `--to` takes."""
    return tuple(target.name for target in TARGETS)


def target_named(name: str) -> Target:
    """The target of this name, which `target_names` has."""
    return next(target for target in TARGETS if target.name == name)


def export(rung: StackRung, name: str) -> str:
    """The text of the rung for a target.

    Raises:
        OomDoctorError: the target cannot express the rung (exit 3).
    """
    text: str = importlib.import_module(target_named(name).module).render(rung)
    return text
