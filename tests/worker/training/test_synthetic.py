"""Synthetic weights are a whole model, in one copy, without a value that is no number."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from tiny_configs import CONFIGS
from tiny_models import tiny_job, tiny_spec

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.tracing.trace import AllocationTrace
from oomdoctor.worker.training import synthetic
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.model_config import load_config, model_class

CPU = torch.device("cpu")


def built(job: ProbeJob) -> torch.nn.Module:
    try:
        return build(job, CPU).model
    except UnsupportedError as error:  # bitsandbytes on the CPU needs a newer transformers
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_and_buffers_equal_those_of_the_library(kind: str) -> None:
    spec = tiny_spec(kind)
    model = built(tiny_job(kind, micro_batch_size=1, effective_batch_size=1))
    original = model_class(spec, load_config(spec)).from_config(load_config(spec))
    shapes = {name: p.shape for name, p in original.named_parameters()}
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    assert not any(p.device.type == "meta" for p in model.parameters())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    buffers = dict(model.named_buffers())
    for name, buffer in original.named_buffers():
        assert torch.equal(buffers[name], buffer), name


def test_tied_weights_stay_one_tensor() -> None:
    model = built(tiny_job("gqa-tied"))
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_loading_never_holds_a_second_copy() -> None:
    trace = AllocationTrace("cpu")
    with trace.recording():
        model = built(tiny_job("dense"))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    largest = max(p.numel() * p.element_size() for p in model.parameters())
    assert trace.peak < weights + 2 * largest


def test_a_weight_larger_than_the_host_is_declared() -> None:
    job = tiny_job("dense")
    job = replace(
        job, model=replace(job.model, config={**job.model.config, "intermediate_size": 1 << 40})
    )
    blueprint = synthetic.Blueprint(job, load_config(job.model), "eager")
    model = synthetic.declare_model(blueprint, CPU)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    assert all(buffer.device == CPU for buffer in model.buffers())


def test_constants_of_quantized_weights_stay_on_the_device() -> None:
    """Only the weights are sharded, so only they go to the host, and are not quantized again."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    state = bitsandbytes.functional.QuantState(absmax=torch.empty(8, device="meta"))
    made = bitsandbytes.nn.Params4bit(
        torch.empty(16, 1, dtype=torch.bfloat16, device="meta"),
        requires_grad=False,
        quant_state=state,
        quant_storage=torch.bfloat16,
        bnb_quantized=True,
    )
    declared = synthetic._moved_to_host(made, nullcontext)
    assert declared.device.type == "cpu"
    assert declared.bnb_quantized
    assert declared.quant_state is state
    assert state.absmax.device.type == "meta"


def test_quantisation_never_holds_the_model_in_full_precision() -> None:
    job = tiny_job("dense", method="qlora", quantization="nf4", weights_dtype="bfloat16")
    full = sum(p.numel() for p in built(tiny_job("dense")).parameters()) * 2
    trace = AllocationTrace("cpu")
    with trace.recording():
        model = built(job)
    assert any(type(p).__name__ == "Params4bit" for p in model.parameters())
    # Embeddings, head and fp32 upcasts stay; the linear layers must not add up.
    layer = max(p.numel() for p in model.parameters()) * 2
    kept = sum(p.untyped_storage().nbytes() for p in model.parameters())
    assert trace.peak < kept + 4 * layer
    assert model.get_base_model().lm_head.weight.dtype == torch.float32  # peft's preparation
    assert full > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_have_the_rungs_dtype(dtype: str) -> None:
    model = built(tiny_job("dense", weights_dtype=dtype))
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
