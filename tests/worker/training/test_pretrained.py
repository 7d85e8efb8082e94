"""`--weights pretrained` loads a real checkpoint and measures the peak of loading it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import tiny_job

from oomdoctor.commands.devices.startup_errors import check_weights
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.answer import answer_here
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.training.model_config import load_config, model_class


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A saved tiny model, as `save_pretrained` leaves it."""
    spec = tiny_job("dense").model
    model = model_class(spec, load_config(spec)).from_config(load_config(spec))
    model.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def job_for(checkpoint: Path, **changes: object) -> ProbeJob:
    job = tiny_job("dense", **changes)
    spec = replace(job.model, path=str(checkpoint), id=str(checkpoint))
    return replace(job, model=spec, weights="pretrained")


@pytest.mark.parametrize(
    "changes",
    [
        {"weights_dtype": "bfloat16"},
        {"method": "lora"},
        {"method": "qlora", "quantization": "nf4", "weights_dtype": "bfloat16"},
    ],
)
def test_a_checkpoint_is_loaded_and_trained(checkpoint: Path, changes: dict[str, object]) -> None:
    reply = answer_here(job_for(checkpoint, **changes), PhaseFile(None))
    if reply.status == "unsupported":
        pytest.skip(str(reply.reason))
    assert reply.measurement is not None, reply
    assert reply.measurement.phases["load"].peak_allocated_bytes > 0
    assert reply.measurement.losses[-1] > 0


def test_weights_that_cannot_be_there_are_said_at_once(tmp_path: Path) -> None:
    spec = tiny_job("dense").model
    for poor in (replace(spec, source="catalogue"), replace(spec, path=str(tmp_path))):
        with pytest.raises(OomDoctorError, match="weights") as raised:
            check_weights(poor)
        assert raised.value.exit_code == ExitCode.MODEL_UNAVAILABLE


def test_a_checkpoint_without_a_padding_token_classifies_batches(tmp_path: Path) -> None:
    job = tiny_job("classifier")
    model = model_class(job.model, load_config(job.model)).from_config(load_config(job.model))
    model.config.pad_token_id = None
    model.save_pretrained(tmp_path)
    spec = replace(job.model, path=str(tmp_path), id=str(tmp_path))
    reply = answer_here(replace(job, model=spec, weights="pretrained"), PhaseFile(None))
    assert reply.measurement is not None, reply
