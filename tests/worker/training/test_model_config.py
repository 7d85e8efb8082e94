"""A config.json that transformers does not read: the reason is whole, and names what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import transformers
from tiny_models import tiny_job

from oomdoctor.commands.devices.startup_errors import inspection_error
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import Attempt, ProbeJob
from oomdoctor.worker.answer import answer_here
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.training.model_config import load_config

STRICT = int(transformers.__version__.partition(".")[0]) >= 5


def spec_of(**changes: Any) -> ModelSpec:
    spec = tiny_job("dense").model
    config = {**spec.config, **changes}
    return replace(spec, config=config, model_type=str(config["model_type"]))


def refused(job: ProbeJob) -> OomDoctorError:
    """The error that a survey or a plan ends with."""
    reply = answer_here(replace(job, mode="inspect"), PhaseFile(None))
    failed = reply.failure
    reason = reply.reason or f"{failed.code}: {failed.message}" if failed else reply.reason
    outcome = "unsupported" if reply.status == "unsupported" else "failed"
    attempt = Attempt(TrainConfig(), outcome, None, None, failed, reason, 0.1)
    return inspection_error(attempt, job.model, "python3")


def test_an_unknown_model_type_names_the_version_and_both_ways_out() -> None:
    spec = spec_of(model_type="llama99")
    with pytest.raises(UnsupportedError) as raised:
        load_config(spec)
    version = transformers.__version__
    assert str(raised.value) == f"transformers {version} does not know this model_type (llama99)"
    error = refused(replace(tiny_job("dense"), model=spec))
    assert version in error.message
    assert "\n" not in error.message
    assert "python3 -m pip install -U transformers" in str(error.hint)
    assert "--trust-remote-code" in str(error.hint)


@pytest.mark.skipif(not STRICT, reason="transformers 4 does not validate its configurations")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 65}, "The hidden size (65) is not a multiple of"),
        ({"hidden_size": "big"}, "expected int, got str (value: 'big')"),
    ],
)
def test_refused_values_show_the_whole_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match="refuses its values") as raised:
        load_config(spec_of(**changes))
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)
    error = refused(replace(tiny_job("dense"), model=spec_of(**changes)))
    assert error.code == "model_cannot_be_built"
    assert reason in error.message
    assert transformers.__version__ in error.message
    assert str(error.hint).startswith("check the values in config.json")


def test_libraries_that_get_no_memory_are_no_fault_of_the_model() -> None:
    reason = "ImportError: libcufft.so.11: failed to map segment from shared object"
    attempt = Attempt(TrainConfig(), "failed", None, None, None, reason, 0.1)
    error = inspection_error(attempt, spec_of(), "python3")
    assert (error.code, error.exit_code) == ("host_oom", 5)
    assert reason in error.message and "more memory" in str(error.hint)
