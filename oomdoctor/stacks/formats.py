"""The programs whose settings can be read and written: one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.records.user_training import FormatName

FileKind = Literal["yaml", "json", "python"]


@dataclass(frozen=True, slots=True)
class Format:
    """One program: the kind of file it is configured with, and the package that parses it.

    `version` is the release from which the names of the settings were taken.
    """

    name: FormatName
    title: str
    kind: FileKind
    package: str
    version: str


FORMATS: tuple[Format, ...] = (
    Format("trainer", "transformers TrainingArguments", "yaml", "transformers", "5.23.0"),
    Format("trl", "TRL (trl sft --config)", "yaml", "trl", "1.16.0"),
    Format("accelerate", "accelerate launch --config_file", "yaml", "accelerate", "1.15.0"),
    Format("deepspeed", "DeepSpeed configuration", "json", "deepspeed", "0.19.8"),
    Format("axolotl", "axolotl train", "yaml", "axolotl", "0.19.0"),
    Format("llama-factory", "llamafactory-cli train", "yaml", "llamafactory", "0.9.5"),
    Format("torchtune", "torchtune (tune run)", "yaml", "torchtune", "0.6.1"),
    Format("unsloth", "Unsloth script", "python", "unsloth", "2025.11"),
    Format("pytorch", "plain PyTorch script", "python", "torch", "2.13.0"),
)
BY_NAME: dict[str, Format] = {row.name: row for row in FORMATS}
