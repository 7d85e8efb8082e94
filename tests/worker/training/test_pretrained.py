"""`--weights pretrained` loads a real checkpoint and measures the peak of loading it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_job

from oomdoctor.commands.devices.startup_errors import check_weights
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.facts.checkpoints import CHECKPOINTS
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.answer import answer_here
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.training.loading import load_model
from oomdoctor.worker.training.model_config import load_config, model_class
from oomdoctor.worker.training.stored import check_kept, dequantized_settings, stored_settings

DEQUANTIZES = find_spec("transformers.integrations.finegrained_fp8") is not None and hasattr(
    import_module("transformers.integrations.finegrained_fp8"), "Fp8Dequantize"
)


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


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "fp8"}, "FP8 weights need a GPU: transformers loads it in bfloat16"),
        ({"quant_method": "gptq", "bits": 4}, r"GPTQ weights need .*: pip install gptqmodel"),
        ({"quant_method": "awq", "bits": 4}, "AWQ weights need gptqmodel: pip install gptqmodel"),
    ],
)
def test_a_stored_checkpoint_says_what_it_needs(
    checkpoint: Path, settings: dict[str, object], reason: str
) -> None:
    """Without a GPU transformers makes FP8 weights bfloat16, which is another training."""
    if find_spec("gptqmodel") is not None and settings["quant_method"] != "fp8":
        pytest.skip("gptqmodel is installed")
    job = job_for(checkpoint, method="qlora", quantization="checkpoint", weights_dtype="bfloat16")
    job = replace(job, model=replace(job.model, quantized=settings))
    reply = answer_here(job, PhaseFile(None))
    assert reply.status == "unsupported"
    assert re.match(reason, str(reply.reason))


def test_weights_that_were_dequantized_are_not_called_stored() -> None:
    settings = SimpleNamespace(dequantize=True)
    quantizer = SimpleNamespace(quantization_config=settings)
    model: Any = SimpleNamespace(hf_quantizer=quantizer, named_parameters=list)
    with pytest.raises(UnsupportedError, match="method=lora"):
        check_kept(model, CHECKPOINTS["fp8"])
    settings.dequantize = False
    check_kept(model, CHECKPOINTS["fp8"])


def test_experts_that_gptq_leaves_out_are_not_called_stored() -> None:
    stack = ("layers.0.experts.down_proj", torch.nn.Parameter(torch.zeros(2, 4, 4)))
    quantizer = SimpleNamespace(quantization_config=SimpleNamespace())
    model: Any = SimpleNamespace(hf_quantizer=quantizer, named_parameters=lambda: [stack])
    with pytest.raises(UnsupportedError, match=r"experts in one tensor \(down_proj\)"):
        check_kept(model, CHECKPOINTS["gptq"])
    check_kept(model, CHECKPOINTS["fp8"])


def test_a_stored_checkpoint_is_loaded_with_kernels_that_train() -> None:
    for method in ("gptq", "awq"):
        spec = replace(tiny_job("dense").model, quantized={"quant_method": method})
        assert stored_settings(spec)["backend"] == "auto_trainable"


@pytest.mark.skipif(not DEQUANTIZES, reason="transformers dequantizes no FP8 weights")
def test_a_quantized_checkpoint_is_dequantized_for_other_methods(checkpoint: Path) -> None:
    """FP8 values without their scales would be other weights, and those of experts are random."""
    file = checkpoint / "model.safetensors"
    whole = load_file(file)
    stored = {}
    for name, weight in whole.items():
        if name.endswith("proj.weight"):
            scale = weight.abs().max() / 448
            stored[name] = (weight / scale).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale.reshape(1, 1)
        else:
            stored[name] = weight
    save_file(stored, file, {"format": "pt"})
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    job = job_for(checkpoint, method="lora", weights_dtype="bfloat16")
    job = replace(job, model=replace(job.model, quantized=settings))
    setup: Any = SimpleNamespace(
        job=job,
        config=job.config,
        device=torch.device("cpu"),
        model_config=load_config(job.model),
        on_host=nullcontext,
    )
    model, _ = load_model(setup)
    name = "model.layers.0.self_attn.q_proj.weight"
    loaded = model.get_parameter(name)
    assert loaded.dtype == torch.bfloat16
    torch.testing.assert_close(loaded.float(), whole[name], rtol=0.1, atol=0.01)


@pytest.mark.parametrize(("method", "quantizes"), [("gptq", False), ("fp8", True)])
def test_what_transformers_does_not_dequantize_is_refused(method: str, quantizes: bool) -> None:
    spec = replace(tiny_job("dense").model, quantized={"quant_method": method})
    with pytest.raises(UnsupportedError, match="needs the unquantized model"):
        dequantized_settings(spec, quantizes)
