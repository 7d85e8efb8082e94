"""Autocast on fake CPU tensors has CUDA's dtypes, casts and cache."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.worker.simulating.cuda.attention import cuda_sdpa
from oomdoctor.worker.simulating.cuda.autocast import cuda_autocast
from oomdoctor.worker.simulating.cuda.choices import choose_backend
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.training.techniques.scaler import scale_gradients

LOWER = pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
FP32 = torch.float32
on_a100 = partial(choose_backend, card=(8, 0))


class Casts(TorchDispatchMode):
    """Counts operators and casts by the dtype they give."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, Any]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) else result
        self.counts[func._schema.name.removeprefix("aten::"), getattr(first, "dtype", None)] += 1
        return result


@pytest.fixture
def simulated() -> Any:
    with FakeTensorMode(), cuda_autocast():
        yield


@LOWER
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (8,)),
        lambda x: F.softmax(x, -1),
        lambda x: F.log_softmax(x, -1),
        lambda x: x.pow(2),
        lambda x: torch.rsqrt(x),
        lambda x: x.exp(),
        lambda x: x.sum(),
        lambda x: x.sum(0),
        lambda x: x.cumsum(0),
        lambda x: x.norm(),
        lambda x: torch.linalg.vector_norm(x),
        lambda x: F.mse_loss(x, x),
        lambda x: F.group_norm(x, 2),
    ],
)
def test_cuda_computes_these_in_fp32(simulated: None, lower: Any, function: Any) -> None:
    x = torch.empty(4, 8, dtype=lower)
    with torch.autocast("cpu", lower):
        assert function(x).dtype == FP32
    if function(x.float()).dtype == FP32:
        assert function(x).dtype == lower  # untouched without autocast


@LOWER
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.linear(x, x),
        lambda x: x @ x.t(),
        lambda x: torch.bmm(x[None], x.t()[None]),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.mv(x, x[0]),
    ],
)
def test_products_are_computed_in_the_lower_precision(
    simulated: None, lower: Any, function: Any
) -> None:
    with torch.autocast("cpu", lower):
        assert function(torch.empty(4, 8)).dtype == lower


def test_an_explicit_dtype_is_respected(simulated: None) -> None:
    x = torch.empty(4, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.softmax(x, -1, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert x.sum(0, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_promotion_goes_to_the_widest(simulated: None) -> None:
    half, wide = torch.empty(4, dtype=torch.bfloat16), torch.empty(4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.dot(half, wide).dtype == FP32
        assert torch.dot(half, half).dtype == torch.bfloat16


def test_integers_and_doubles_are_left_alone(simulated: None) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.zeros(4, dtype=torch.long).sum().dtype == torch.long
        assert torch.zeros(4, dtype=torch.float64).exp().dtype == torch.float64


def test_softmax_reads_fp16_without_a_copy_and_bf16_with_one(simulated: None) -> None:
    for dtype, copies in ((torch.float16, 0), (torch.bfloat16, 1)):
        x = torch.empty(4, 8, dtype=dtype, requires_grad=True)
        with Casts() as casts, torch.autocast("cpu", dtype):
            F.softmax(x, -1).sum().backward()
        assert casts.counts["_to_copy", FP32] == copies
        assert x.grad is not None and x.grad.dtype == dtype


def test_entries_only_the_cpu_has_are_undone() -> None:
    x = torch.empty(1, 1, 4, 4, 4, dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cpu", torch.bfloat16):
        assert F.avg_pool3d(x, 2).dtype == FP32
        with cuda_autocast():
            assert F.avg_pool3d(x, 2).dtype == torch.bfloat16
        assert F.avg_pool3d(x, 2).dtype == FP32  # and CPU's list is back afterwards
        assert F.layer_norm(x, (4,)).dtype == torch.bfloat16


def test_a_weight_is_cast_once_in_an_autocast_region(simulated: None) -> None:
    layer, x = torch.nn.Linear(8, 8, bias=False), torch.empty(2, 8)
    with Casts() as casts:
        with torch.autocast("cpu", torch.bfloat16):
            layer(layer(x))
        assert casts.counts["_to_copy", torch.bfloat16] == 2  # the input and the weight
        with torch.autocast("cpu", torch.bfloat16):
            layer(x)
        assert casts.counts["_to_copy", torch.bfloat16] == 4


def test_attention_inputs_are_cast_before_the_kernel_is_chosen(simulated: None) -> None:
    x = torch.empty(1, 2, 16, 64)
    with Casts() as casts, cuda_sdpa(on_a100), torch.autocast("cpu", torch.bfloat16):
        F.scaled_dot_product_attention(x, x, x)
    assert casts.counts["_scaled_dot_product_flash_attention", torch.bfloat16] == 1


CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "bert": ("BertConfig", "BertForMaskedLM", {}),
    "t5": ("T5Config", "T5ForConditionalGeneration", {"d_kv": 8, "d_ff": 64}),
}


@LOWER
@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_models_train_under_autocast(lower: Any, architecture: str) -> None:
    import transformers

    config_name, model_name, own = CONFIGS[architecture]
    config = getattr(transformers, config_name)(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        **own,
    )
    with simulated_device(cuda=True), cuda_autocast(), cuda_sdpa(on_a100):
        model = getattr(transformers, model_name)(config).train()
        tokens = torch.zeros(2, 16, dtype=torch.long)
        with Casts() as casts, torch.autocast("cpu", lower):
            output = model(input_ids=tokens, labels=tokens)
        assert output.logits.dtype == lower and output.loss.dtype == FP32
        output.loss.backward()
    assert all(p.grad is not None and p.grad.dtype == FP32 for p in model.parameters())
    if architecture in ("gpt2", "bert"):
        assert casts.counts["native_layer_norm", lower] == 0


class NoOverflow(TorchDispatchMode):
    """Answers the gradient scaler, which asks whether a gradient overflowed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0.0
        return func(*args, **(kwargs or {}))


def test_fp16_trains_with_a_gradient_scaler() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    try:
        accelerator = Accelerator(mixed_precision="no", cpu=True)
        setup: Any = SimpleNamespace(trainer=SimpleNamespace(accelerator=accelerator))
        scale_gradients(setup)
        with FakeTensorMode(allow_non_fake_inputs=True), cuda_autocast(), NoOverflow():
            layer = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(layer.parameters(), momentum=0.9)
            # Without moving: a module of fake tensors cannot be moved, not even to where it is.
            model, optimizer = accelerator.prepare(layer, optimizer, device_placement=[False, True])
            with Casts() as casts:
                loss = model(torch.empty(2, 4)).sum()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            assert casts.counts["addmm", torch.float16] == 1
            assert casts.counts["_amp_foreach_non_finite_check_and_unscale_", None] == 1
            assert layer.weight in optimizer.optimizer.state
    finally:
        AcceleratorState._reset_state(True)


def test_autocast_without_a_device_type_is_the_simulated_one() -> None:
    with cuda_autocast():
        assert not torch.is_autocast_enabled()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.is_autocast_enabled()  # peft's layers for bitsandbytes ask so
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.is_autocast_enabled()
