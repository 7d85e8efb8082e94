"""The small models whose training steps `probe --calibrate` times; `data/calibration.toml`."""

from __future__ import annotations

from typing import Any

from oomdoctor.package_data import data_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.machine import DeviceType
from oomdoctor.records.job.model import ModelSpec

_MODELS: list[dict[str, Any]] = data_of("calibration.toml")["models"]


def calibration_models(device: DeviceType) -> tuple[tuple[ModelSpec, TrainConfig], ...]:
    """The models with the training of each on a device; the host limits the first one."""
    return tuple((_spec(row), _training(row[device])) for row in _MODELS)


def _spec(row: dict[str, Any]) -> ModelSpec:
    return ModelSpec(
        id=row["name"],
        source="catalogue",
        architecture=row["architecture"],
        model_type=row["config"]["model_type"],
        task="causal-lm",
        config=row["config"] | {"architectures": [row["architecture"]]},
    )


def _training(shape: dict[str, Any]) -> TrainConfig:
    return TrainConfig(**shape, effective_batch_size=shape["micro_batch_size"])
