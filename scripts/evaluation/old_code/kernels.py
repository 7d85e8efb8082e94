"""What the code of published runs computed otherwise than today's, as changes for one simulation.

Beside `adaptations`, which is about memory: differences that move bytes and FLOPs. Each is named by
its cause and says where that was read; none carries a number from a measurement.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

from old_code.adaptations import ADAPTATIONS, Adaptation
from oomdoctor.records.configuration.config import TrainConfig

IN_TRITON = "attention in Triton"
OWN_CAUSAL = "causal attention of its own"


@contextlib.contextmanager
def _whole_recompute(_: TrainConfig) -> Iterator[None]:
    from torch.utils.checkpoint import set_checkpoint_early_stop

    with set_checkpoint_early_stop(False):
        yield


def _own_causal(_: TrainConfig) -> contextlib.AbstractContextManager[Any]:
    from oomdoctor.worker.simulating.cuda import compiled_masks

    return mock.patch.object(compiled_masks, "as_traced", contextlib.nullcontext)


@contextlib.contextmanager
def _qwen_1(_: TrainConfig) -> Iterator[None]:
    from transformers.models.qwen2 import modeling_qwen2

    with mock.patch.object(modeling_qwen2, "Qwen2Attention", _attention()):
        yield


def _attention() -> Any:
    import torch
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    class Attention(torch.nn.Module):  # type: ignore[misc]
        """`QWenAttention`: one product for query, key and value, rotated by a kernel in fp32."""

        def __init__(self, config: Any, layer_idx: int) -> None:
            super().__init__()
            width = config.hidden_size
            self.config, self.layer_idx, self.is_causal = config, layer_idx, True
            self.heads = config.num_attention_heads
            self.c_attn = torch.nn.Linear(width, 3 * width)
            self.c_proj = torch.nn.Linear(width, width, bias=False)

        def forward(self, hidden_states: Any, **kwargs: Any) -> Any:
            shape = hidden_states.shape
            parts = self.c_attn(hidden_states).split(shape[-1], dim=2)
            query, key, value = (part.view(*shape[:-1], self.heads, -1) for part in parts)
            attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
            states, _ = attend(
                self,
                _rotated(query).transpose(1, 2),
                _rotated(key).transpose(1, 2),
                value.transpose(1, 2),
                None,
            )
            return self.c_proj(states.reshape(shape)), None

    return Attention


def _rotated(states: Any) -> Any:
    """What `apply_rotary_emb_func` moves: it reads and writes fp32 once; so does a negation."""
    return (-states.float()).type_as(states)


@contextlib.contextmanager
def _fused_norms_and_rotations(_: TrainConfig) -> Iterator[None]:
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral

    def rotate(query: Any, key: Any, *_: Any, **__: Any) -> Any:
        return -query, -key

    with contextlib.ExitStack() as stack:
        for module, norm in (
            (modeling_llama, modeling_llama.LlamaRMSNorm),
            (modeling_mistral, modeling_mistral.MistralRMSNorm),
        ):
            stack.enter_context(mock.patch.object(norm, "forward", _fused_norm))
            stack.enter_context(mock.patch.object(module, "apply_rotary_pos_emb", rotate))
        yield


@contextlib.contextmanager
def _fused_loss(_: TrainConfig) -> Iterator[None]:
    import torch
    from transformers.loss.loss_utils import LOSS_MAPPING

    class Loss(torch.autograd.Function):  # type: ignore[misc]
        """Reads the logits once, and writes their gradient in their place."""

        @staticmethod
        def forward(context: Any, logits: Any) -> Any:
            context.save_for_backward(logits)
            return logits.amax(-1).float().mean()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            (logits,) = context.saved_tensors
            return logits.neg_()

    def loss_of(logits: Any, labels: Any, **_: Any) -> Any:
        return Loss.apply(logits)

    with mock.patch.dict(LOSS_MAPPING, ForCausalLM=loss_of):
        yield


def _fused_norm(self: Any, states: Any) -> Any:
    """What a Triton kernel of an RMS norm moves: as much as a layer norm.

    Kernels that are not PyTorch's do not change their types under autocast.
    """
    import torch

    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        weight = self.weight.to(states.dtype)
        return torch.nn.functional.layer_norm(states, states.shape[-1:], weight)


@contextlib.contextmanager
def _bert_adam(_: TrainConfig) -> Iterator[None]:
    import torch

    def step(self: Any, closure: Any = None) -> None:
        """One operator after the other for each parameter, after the norm of all gradients."""
        groups = self.param_groups
        torch._foreach_norm([p.grad for group in groups for p in group["params"]])
        for group in groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["next_m"] = torch.zeros_like(parameter)
                    state["next_v"] = torch.zeros_like(parameter)
                mean, square, gradient = state["next_m"], state["next_v"], parameter.grad
                clipped = parameter.data * 1.0 / 2.0
                mean.mul_(0.9).add_(gradient, alpha=0.1)
                square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                update = mean / (square.sqrt() + 1e-6)
                if group["weight_decay"] > 0:
                    update += group["weight_decay"] * clipped
                parameter.data.add_(-(update * 1e-5))

    with mock.patch.object(torch.optim.AdamW, "step", torch.no_grad()(step)):
        yield


@contextlib.contextmanager
def _masters_of_apex(_: TrainConfig) -> Iterator[None]:
    import torch

    def step(self: Any, closure: Any = None) -> None:
        """Gradients and weights are copied from float16 to float32 and back, by lists."""
        for group in self.param_groups:
            parameters = group["params"]
            for parameter in parameters:
                state = self.state[parameter]
                for name in ("master", "gradient", "exp_avg", "exp_avg_sq"):
                    if name not in state:
                        state[name] = torch.zeros_like(parameter, dtype=torch.float32)
            masters, gradients, means, squares = (
                [self.state[p][name] for p in parameters]
                for name in ("master", "gradient", "exp_avg", "exp_avg_sq")
            )
            torch._foreach_copy_(gradients, [p.grad for p in parameters])
            torch._foreach_norm(gradients)
            torch._foreach_mul_(gradients, 0.5)
            # The reads and writes of FusedAdam: four tensors are read, three written.
            torch._foreach_addcmul_(means, gradients, gradients)
            torch._foreach_mul_(squares, 0.999)
            torch._foreach_mul_(masters, 0.999)
            torch._foreach_copy_([p.data for p in parameters], masters)

    with mock.patch.object(torch.optim.AdamW, "step", torch.no_grad()(step)):
        yield


@contextlib.contextmanager
def _layers_by_operators(_: TrainConfig) -> Iterator[None]:
    import torch

    def norm(self: Any, x: Any) -> Any:
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.weight * ((x - mean) / torch.sqrt(variance + self.eps)) + self.bias

    with mock.patch.object(torch.nn.LayerNorm, "forward", norm):
        yield


@contextlib.contextmanager
def _loss_in_its_type(_: TrainConfig) -> Iterator[None]:
    import torch
    from transformers.loss.loss_utils import LOSS_MAPPING

    def loss_of(logits: Any, labels: Any, **_: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    with mock.patch.dict(LOSS_MAPPING, ForCausalLM=loss_of):
        yield


@contextlib.contextmanager
def _attention_in_triton(_: TrainConfig) -> Iterator[None]:
    from oomdoctor.analysis.speed import roofline

    own, slower = roofline.attention_of, 1.9  # the middle of 1.3 to 2.5

    def attention_of(name: str, gpu: Any) -> Any:
        today = own(name, gpu)
        return today and dataclasses.replace(
            today, forward=today.forward / slower, backward=today.backward / slower
        )

    with mock.patch.object(roofline, "attention_of", attention_of):
        yield


@contextlib.contextmanager
def _norms_in_low_precision(_: TrainConfig) -> Iterator[None]:
    import torch

    def norm(self: Any, x: Any) -> Any:
        kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        with torch.autocast("cpu", enabled=False):
            weight, bias = self.weight.to(kind), self.bias.to(kind)
            return torch.nn.functional.layer_norm(
                x.to(kind), self.normalized_shape, weight, bias, self.eps
            )

    with mock.patch.object(torch.nn.LayerNorm, "forward", norm):
        yield


@contextlib.contextmanager
def _tf32(_: TrainConfig) -> Iterator[None]:
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


KERNELS = {
    "TF32": Adaptation(
        "lets float32 products run on tensor cores",
        "the rows say so; containers of NVIDIA and PyTorch before 1.12 do it by default",
        _tf32,
    ),
    "whole recompute": Adaptation(
        "recomputes a layer to its end, the last product included (reentrant checkpointing)",
        "default of transformers 4 modeling_utils.py gradient_checkpointing_enable; "
        "torch.utils.checkpoint set_checkpoint_early_stop tells of both forms",
        _whole_recompute,
    ),
    "adapters like the base": ADAPTATIONS["adapters like the base"],
    "fused norms and rotations": Adaptation(
        "has Triton kernels for RMS norms and for the rotation of queries and keys",
        "github foundation-model-stack/fms-acceleration plugins/fused-ops-and-kernels @876e2ed6fc "
        "fast_rms_layernorm, fast_rope_embeddings",
        _fused_norms_and_rotations,
    ),
    "fused loss": Adaptation(
        "has a Triton kernel for the loss, which overwrites the logits with their gradient",
        "github foundation-model-stack/fms-acceleration plugins/fused-ops-and-kernels @876e2ed6fc "
        "cross_entropy_loss.py",
        _fused_loss,
    ),
    "layer norm by operators": Adaptation(
        "computes layer norms by mean, variance, difference, quotient, product and sum",
        "github rasbt/LLMs-from-scratch ch05/10_llm-training-speed/00_orig.py LayerNorm",
        _layers_by_operators,
    ),
    "loss in its type": Adaptation(
        "computes the loss in the type of the logits",
        "github rasbt/LLMs-from-scratch ch05/10_llm-training-speed/01_opt_single_gpu.py "
        "calc_loss_batch",
        _loss_in_its_type,
    ),
    IN_TRITON: Adaptation(
        "has FlashAttention in Triton, which FlashAttention-2 is 1.3 to 2.5 times as fast as",
        "github mosaicml/llm-foundry scripts/train/benchmarking/submit_benchmarks.py --attn_impl; "
        "Dao 2023, arXiv:2307.08691, section 4.1",
        _attention_in_triton,
    ),
    OWN_CAUSAL: Adaptation(
        "calls sdpa with is_causal itself, also when it is compiled, where transformers has a mask",
        "github rasbt/LLMs-from-scratch ch05/10_llm-training-speed/01_opt_single_gpu.py "
        "PyTorchMultiHeadAttention; github foundation-model-stack/foundation-model-stack "
        "fms/modules/attention.py",
        _own_causal,
    ),
    "norms in low precision": Adaptation(
        "computes layer norms in 16 bits under autocast",
        "github mosaicml/llm-foundry scripts/train/benchmarking/submit_benchmarks.py "
        "low_precision_layernorm",
        _norms_in_low_precision,
    ),
    "BertAdam": Adaptation(
        "updates each parameter by separate operators, after the norm of all gradients",
        "github NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/BERT optimization.py, "
        "which run_squad.py takes without --fp16",
        _bert_adam,
    ),
    "masters of apex": Adaptation(
        "keeps float32 weights and gradients beside those in float16 (apex, level O2)",
        "github NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/BERT run_squad.py, with "
        "--fp16; github NVIDIA/apex apex/amp/_process_optimizer.py",
        _masters_of_apex,
    ),
    "Qwen 1": Adaptation(
        "has one product for query, key and value, and flash-attn's kernel for the rotation",
        "github huggingface Qwen/Qwen-7B modeling_qwen.py QWenAttention, apply_rotary_pos_emb; "
        "README of github QwenLM/Qwen @2df8e8ac45, which installs no kernel for norms",
        _qwen_1,
    ),
}
