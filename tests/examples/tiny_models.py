"""Tiny models of each kind, and jobs for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_configs import CONFIGS, EMBED, SPECIAL
from tiny_image_configs import MORE_WITH_IMAGES, OTHER_IMAGES, WITH_IMAGES
from tiny_sound_configs import OF_SOUND

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob

_ALL = CONFIGS | SPECIAL | EMBED | WITH_IMAGES | MORE_WITH_IMAGES | OTHER_IMAGES | OF_SOUND


def tiny_spec(kind: str = "dense") -> ModelSpec:
    """The model of this kind as the hub would have found it."""
    task, architecture, config = _ALL[kind]
    return ModelSpec(
        id=f"tiny/{kind}",
        source="local",
        architecture=architecture,
        model_type=config["model_type"],
        task=task,
        config=config | {"architectures": [architecture]},
    )


def tiny_folder(folder: Path, kind: str = "dense") -> Path:
    """A new folder with the config.json of this kind, to give as the model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(tiny_spec(kind).config)))
    return folder


def tiny_job(kind: str = "dense", **changes: Any) -> ProbeJob:
    """A CPU job at micro-batch 2 of 4; keys of the job itself start with `job_`."""
    job = {
        name.removeprefix("job_"): value
        for name, value in changes.items()
        if name.startswith("job_")
    }
    rung = {name: value for name, value in changes.items() if not name.startswith("job_")}
    base = TrainConfig(
        weights_dtype="float32", micro_batch_size=2, sequence_length=32, effective_batch_size=4
    )
    return replace(
        ProbeJob(
            mode="measure",
            label="tiny",
            model=tiny_spec(kind),
            config=replace(base, **rung),
            device_type="cpu",
            timing_limit_s=2.0,
            max_timed_steps=3,
        ),
        **job,
    )
