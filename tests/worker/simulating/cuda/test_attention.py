"""Attention on fake CPU tensors reaches CUDA's kernels, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.simulating.cuda import choices
from oomdoctor.worker.simulating.cuda.attention import Call, cuda_sdpa, simulated_packages
from oomdoctor.worker.simulating.cuda.choices import choose_backend
from oomdoctor.worker.simulating.cuda.kernel_rules import steps_of
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.training.inspection import torch_release
from oomdoctor.worker.training.synthetic import dtype_keyword

T4, A100, RTX_4090, H100 = (7, 5), (8, 0), (8, 9), (9, 0)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Recorder(TorchDispatchMode):
    def __init__(self, card: Card = A100) -> None:
        super().__init__()
        self.card = card
        self.results: dict[str, list[Any]] = {}
        self.hidden: dict[str, tuple[int, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        self.results.setdefault(name, []).append(result)
        steps = steps_of(OperatorCall(func, args, kwargs, result), self.card)
        blocks = tuple(step for step in steps if isinstance(step, int))
        if blocks:
            self.hidden[name] = blocks
        return result

    @property
    def attention(self) -> list[str]:
        return [name for name in self.results if "scaled_dot_product" in name]


@pytest.fixture
def fake() -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


@pytest.fixture
def device() -> Any:
    with simulated_device(cuda=True):
        yield


def qkv(
    *, length: int = 64, heads: int = 8, kv_heads: int = 8, dim: int = 64, dtype: Any = BF16
) -> tuple[Any, Any, Any]:
    """As a model makes them: (batch, length, heads, dim) seen as (batch, heads, length, dim)."""
    query = torch.empty(2, length, heads, dim, dtype=dtype, requires_grad=True)
    key, value = (
        torch.empty(2, length, kv_heads, dim, dtype=dtype, requires_grad=True) for _ in range(2)
    )
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def train(card: Card, tensors: tuple[Any, Any, Any], **kwargs: Any) -> Recorder:
    recorder = Recorder(card)
    with cuda_sdpa(partial(choose_backend, card=card)), recorder:
        output = F.scaled_dot_product_attention(*tensors, **kwargs)
        output.transpose(1, 2).contiguous().pow(2).sum().backward()
    for tensor in tensors:
        assert tensor._base.grad.shape == tensor._base.shape
    return recorder


@pytest.mark.parametrize(
    ("card", "dtype", "mask", "grouped", "backend"),
    [
        (A100, BF16, None, False, "flash"),
        (A100, BF16, None, True, "flash"),
        (A100, BF16, torch.bool, False, "efficient"),
        (A100, BF16, torch.bool, True, "math"),
        (A100, FP32, None, False, "efficient"),
        (A100, FP32, None, True, "math"),
        (T4, FP16, None, False, "efficient"),
        (T4, BF16, None, False, "math"),
        (RTX_4090, FP16, None, False, "flash"),
    ],
)
def test_the_backend_is_the_one_cuda_takes(
    fake: None, card: Card, dtype: Any, mask: Any, grouped: bool, backend: str
) -> None:
    query, key, value = qkv(dtype=dtype, kv_heads=2 if grouped else 8)
    given = None if mask is None else torch.empty(2, 1, 64, 64, dtype=mask)
    call = Call(query, key, value, given, is_causal=mask is None, grouped=grouped)
    assert choose_backend(call, card) == backend


@pytest.mark.parametrize(
    ("release", "backend"),
    [((2, 8), "flash"), ((2, 9), "cudnn"), ((2, 10), "flash"), ((2, 11), "cudnn")],
)
def test_hopper_prefers_cudnn_in_some_releases(
    fake: None, monkeypatch: pytest.MonkeyPatch, release: tuple[int, int], backend: str
) -> None:
    monkeypatch.setattr(choices, "torch_release", lambda: release)
    assert choose_backend(Call(*qkv(), is_causal=True), H100) == backend


def test_switches_of_torch_count(fake: None) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        assert choose_backend(Call(*qkv()), A100) == "efficient"
    with sdpa_kernel([SDPBackend.MATH]):
        assert choose_backend(Call(*qkv()), A100) == "math"


def test_flash_with_wide_heads_needs_a_server_card_to_train(fake: None) -> None:
    tensors = qkv(dim=224)
    assert choose_backend(Call(*tensors), A100) == "flash"
    assert choose_backend(Call(*tensors), RTX_4090) == "efficient"
    with torch.no_grad():
        assert choose_backend(Call(*tensors), RTX_4090) == "flash"


def test_flash_leaves_its_output_and_log_sum_exp(fake: None) -> None:
    recorder = train(A100, qkv(length=130), is_causal=True)
    output, lse, *_ = recorder.results["_scaled_dot_product_flash_attention"][0]
    assert output.stride() == (130 * 8 * 64, 64, 8 * 64, 1)
    assert lse.shape == (2, 8, 130) and lse.dtype == FP32
    # softmax_d and dq_accum over 256 rows
    assert recorder.hidden["_scaled_dot_product_flash_attention_backward"] == (
        4 * 2 * 8 * 256,
        4 * 2 * 8 * 256 * 64,
    )


def test_grouped_queries_expand_dk_and_dv(fake: None) -> None:
    recorder = train(A100, qkv(kv_heads=2), is_causal=True, enable_gqa=True)
    blocks = recorder.hidden["_scaled_dot_product_flash_attention_backward"]
    assert blocks[-2:] == (2 * 64 * 8 * 64 * 2,) * 2
    _, dk, _ = recorder.results["_scaled_dot_product_flash_attention_backward"][0]
    assert dk.shape == (2, 2, 64, 64)


def test_head_dimensions_are_padded_to_eight_outside_flash(fake: None) -> None:
    recorder = train(A100, qkv(dim=60), is_causal=True)
    assert [r.shape[-1] for r in recorder.results["constant_pad_nd"][:3]] == [64, 64, 64]


def test_a_strided_gradient_is_copied_for_flash(fake: None) -> None:
    recorder = Recorder(A100)
    with cuda_sdpa(partial(choose_backend, card=A100)), recorder:
        F.scaled_dot_product_attention(*qkv()).sum().backward()  # the gradient of a sum is expanded
    blocks = recorder.hidden["_scaled_dot_product_flash_attention_backward"]
    assert blocks[0] == 2 * 8 * 64 * 64 * 2 and len(blocks) == 3


def test_efficient_pads_the_mask_and_the_log_sum_exp(fake: None) -> None:
    mask = torch.empty(2, 1, 50, 50, dtype=torch.bool)
    recorder = train(A100, qkv(length=50), attn_mask=mask)
    assert recorder.results["where"][0].dtype == BF16
    assert recorder.results["constant_pad_nd"][0].shape == (2, 1, 50, 56)
    _, lse, *_ = recorder.results["_scaled_dot_product_efficient_attention"][0]
    assert lse.shape == (2, 8, 64)


def test_efficient_needs_no_log_sum_exp_without_gradients(fake: None) -> None:
    recorder = Recorder()
    with cuda_sdpa(partial(choose_backend, card=T4)), recorder, torch.no_grad():
        F.scaled_dot_product_attention(*qkv(dtype=FP16))
    assert recorder.results["_scaled_dot_product_efficient_attention"][0][1].numel() == 0


@pytest.mark.parametrize(
    ("card", "dim", "dtype", "staged"),
    [
        (A100, 128, BF16, 4 * (128 * 128 * 4 + 16)),  # 4 x 1 tiles of dQ; dK, dV in registers
        (A100, 64, BF16, 8 * (64 * 64 * 4 + 16)),
        # 64 x 64 tiles: 8 x 2 of dQ; 8 splits of keys, 64 rows of dK and dV each
        (RTX_4090, 128, BF16, 16 * (64 * 64 * 4 + 16) + 4 * 8 * 64 * 256),
        (A100, 64, FP32, 8 * (64 * 64 * 4 + 16)),
    ],
)
def test_efficient_backward_stages_in_fp32(
    fake: None, card: Card, dim: int, dtype: Any, staged: int
) -> None:
    mask = torch.empty(512, 512, dtype=dtype)
    recorder = train(card, qkv(length=512, dim=dim, dtype=dtype), attn_mask=mask)
    delta = 4 * 2 * 8 * 512
    # The kernels for fp32 do not compute delta; it is the sum of a product.
    made = (delta,) if dtype != torch.float32 else (delta * dim, delta, delta)
    found = recorder.hidden["_scaled_dot_product_efficient_attention_backward"]
    assert found == (*made, 2 * 8 * staged)


@pytest.mark.skipif(torch_release() < (2, 9), reason="cuDNN attention is never taken there")
def test_cudnn_gathers_dq_in_fp32(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "torch_release", lambda: (2, 13))
    recorder = train(H100, qkv(), is_causal=True)
    assert recorder.hidden["_scaled_dot_product_cudnn_attention_backward"] == (4 * 2 * 8 * 64 * 65,)


def test_math_shows_the_scores(fake: None) -> None:
    recorder = train(T4, qkv(dtype=BF16), is_causal=True)
    assert recorder.attention == []
    assert recorder.results["_safe_softmax"][0].shape == (2, 8, 64, 64)
    scores = 2 * 8 * 64 * 64
    rows = scores // 64
    assert recorder.hidden["_safe_softmax"] == (scores, rows, 4)
    assert recorder.hidden["_softmax_backward_data"] == (4 * scores,)
    assert "add_" in recorder.results  # the mask, in place
    assert "add" not in recorder.results


def test_dropout_and_recomputation_take_the_same_way(fake: None) -> None:
    from torch.utils.checkpoint import checkpoint

    tensors, recorder = qkv(), Recorder()
    with cuda_sdpa(partial(choose_backend, card=A100)), recorder:
        output = checkpoint(
            F.scaled_dot_product_attention, *tensors, dropout_p=0.1, use_reentrant=False
        )
        output.transpose(1, 2).contiguous().pow(2).sum().backward()
    assert len(recorder.results["_scaled_dot_product_flash_attention"]) == 2


def test_nothing_stays_registered(fake: None) -> None:
    with cuda_sdpa(partial(choose_backend, card=A100)):
        pass
    recorder = Recorder()
    with recorder:
        F.scaled_dot_product_attention(*qkv())
    assert recorder.attention == ["_scaled_dot_product_flash_attention_for_cpu"]


def test_masks_change_cpu_kernels_only_inside_the_context(fake: None) -> None:
    recorder = Recorder()
    with recorder:
        F.scaled_dot_product_attention(*qkv(), attn_mask=torch.empty(64, 64, dtype=torch.bool))
    assert "_scaled_dot_product_efficient_attention" not in recorder.attention


def tiny(architecture: str) -> Any:
    import transformers

    settings = {
        "llama": ("LlamaConfig", {"num_key_value_heads": 2, "intermediate_size": 64}),
        "gpt2": ("GPT2Config", {}),
        "bert": ("BertConfig", {"intermediate_size": 64}),
    }
    name, own = settings[architecture]
    shared = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = getattr(transformers, name)(**shared, **own, bos_token_id=0, eos_token_id=0)
    kind = (
        transformers.AutoModelForMaskedLM
        if architecture == "bert"
        else transformers.AutoModelForCausalLM
    )
    return kind.from_config(config, attn_implementation="sdpa", **{dtype_keyword(): BF16})


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "bert"])
def test_models_train_with_flash(device: None, architecture: str) -> None:
    model = tiny(architecture).train()
    tokens = torch.zeros(2, 16, dtype=torch.long)
    recorder = Recorder()
    with cuda_sdpa(partial(choose_backend, card=A100)), recorder:
        model(input_ids=tokens, labels=tokens).loss.backward()
    assert "_scaled_dot_product_flash_attention_backward" in recorder.attention


def test_flash_packages_are_stood_in_for(device: None) -> None:
    model = tiny("llama").train()
    tokens = torch.zeros(2, 16, dtype=torch.long)
    recorder = Recorder(H100)
    with simulated_packages(), cuda_sdpa(partial(choose_backend, card=H100)), recorder:
        model(input_ids=tokens, labels=tokens).loss.backward()
    # Hopper would send sdpa to cuDNN; the package always runs its own kernel, with grouped heads.
    assert recorder.attention == [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
    ]
    assert len(recorder.hidden["_scaled_dot_product_flash_attention_backward"]) == 4
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert ALL_ATTENTION_FUNCTIONS["sdpa"].__name__ == "sdpa_attention_forward"


def test_a_stand_in_takes_the_place_of_what_a_library_put_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unsloth replaces sdpa by an entry, which hides the functions that are registered."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def own(*_: object) -> None:
        """The function of the library."""

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", own)
    with simulated_packages():
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not own
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is own


@pytest.mark.parametrize(("kv_heads", "expanded"), [(8, 0), (2, 2)])
def test_documents_in_a_row_reach_the_kernel_for_variable_lengths(
    device: None, kv_heads: int, expanded: int
) -> None:
    from transformers import modeling_utils

    query = torch.empty(1, 96, 8, 64, dtype=BF16, requires_grad=True)
    key, value = (
        torch.empty(1, 96, kv_heads, 64, dtype=BF16, requires_grad=True) for _ in range(2)
    )
    borders = torch.empty(4, dtype=torch.int32)
    recorder = Recorder()
    with simulated_packages(), recorder:
        attend = modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
        tensors = (each.transpose(1, 2) for each in (query, key, value))
        module = torch.nn.Module()
        output, _ = attend(module, *tensors, None, cu_seq_lens_q=borders, max_length_q=32)
        assert output.shape == (1, 96, 8, 64)
        output.pow(2).sum().backward()
    (results,) = recorder.results["_flash_attention_forward"]
    assert results[1].shape == (8, 96)  # of each head and token, not padded by document
    rows = 96 + 3 * 128
    accumulators = (4 * 8 * rows, 4 * 8 * rows * 64)
    assert recorder.hidden["_flash_attention_backward"][:2] == accumulators
    assert len(recorder.hidden["_flash_attention_backward"]) == 2 + expanded
    assert key.grad is not None and key.grad.shape == key.shape
