"""What the code of published runs computed otherwise than today's, as changes for one simulation.

Beside `adaptations`, which is about memory: differences that move bytes and FLOPs. Each is named by
its cause and says where that was read; none carries a number from a measurement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from old_code.adaptations import ADAPTATIONS, Adaptation
from oomdoctor.records.configuration.config import TrainConfig


@contextlib.contextmanager
def _whole_recompute(_: TrainConfig) -> Iterator[None]:
    from torch.utils.checkpoint import set_checkpoint_early_stop

    with set_checkpoint_early_stop(False):
        yield


@contextlib.contextmanager
def _qwen_1(_: TrainConfig) -> Iterator[None]:
    from transformers.models.qwen2 import modeling_qwen2

    with (
        mock.patch.object(modeling_qwen2, "Qwen2Attention", _attention()),
        mock.patch.object(modeling_qwen2.Qwen2RMSNorm, "forward", _fused_norm),
    ):
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
    """What flash-attn's `rms_norm` moves, which is the kernel of its layer norm."""
    import torch

    return torch.nn.functional.layer_norm(states, states.shape[-1:], self.weight)


KERNELS = {
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
    "Qwen 1": Adaptation(
        "has one product for query, key and value, and flash-attn's kernels for norm and rotation",
        "github huggingface Qwen/Qwen-7B modeling_qwen.py QWenAttention, RMSNorm, "
        "apply_rotary_pos_emb; README of github QwenLM/Qwen @2df8e8ac45",
        _qwen_1,
    ),
}
