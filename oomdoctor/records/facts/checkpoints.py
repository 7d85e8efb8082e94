"""Quantized checkpoints: which of them LoRA is trained on as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from oomdoctor.package_data import rows_of
from oomdoctor.records.capability import capability_numbers


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A `quant_method` of config.json.

    `stored` is whether LoRA is trained on the weights as they are in the file, and `layers` which
    layers are stored so. `needs` are the packages, `capability` is the lowest compute capability,
    `settings` are added to the file's own to train it, with the class `loader` of transformers.
    With `dequantizes` transformers can load the weights in 16 bits.
    `instead` says what is done on other cards, or how the checkpoint is trained.
    """

    method: str
    name: str
    instead: str
    stored: bool = False
    layers: Literal["none", "linear", "experts"] = "none"
    capability: str | None = None
    needs: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    loader: str | None = None
    dequantizes: bool = False

    def loader_arguments(self, *, stored: bool) -> Mapping[str, object]:
        """What `loader` is called with, to train on the stored weights or on 16-bit ones."""
        if stored:
            return {"bits": 4, **self.settings} if self.settings else {}
        return {"dequantize": True} if self.dequantizes else {}

    def lacks(self, quantization: str, capability: str | None) -> str | None:
        """Why a GPU does not train LoRA on the stored weights; None if it does, or is unknown."""
        if quantization != "checkpoint" or self.capability is None or capability is None:
            return None
        if capability_numbers(capability) >= capability_numbers(self.capability):
            return None
        needed = f"{self.name} weights need compute capability {self.capability}"
        return f"{needed}; this card has {capability}: {self.instead}, which method=lora plans"

    def lacks_here(self, device_type: str, installed: Callable[[str], bool]) -> str | None:
        """Why this machine does not load the stored weights for training; None if it does."""
        if self.capability is not None and device_type == "cpu":
            return f"{self.name} weights need a GPU: {self.instead}, which method=lora measures"
        missing = [name for name in self.needs if not installed(name)]
        if missing:
            names = " and ".join(missing)
            return f"{self.name} weights need {names}: pip install {' '.join(missing)}"
        return None


CHECKPOINTS = {row.method: row for row in rows_of(Checkpoint, "checkpoints.toml")}


def checkpoint_of(settings: Mapping[str, Any] | None) -> Checkpoint | None:
    """The row of a config.json's `quantization_config`; None without one, or if it is unknown."""
    return None if settings is None else CHECKPOINTS.get(str(settings.get("quant_method")))
