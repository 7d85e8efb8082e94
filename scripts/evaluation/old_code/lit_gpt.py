"""lit-gpt of October 2023 on transformers' Llama: what its LoRA fine-tuning keeps for the backward.

Read from github Lightning-AI/litgpt @0cc02afa (lit_gpt/model.py, lora.py, utils.py and
finetune/lora.py), the commit that published the runs; @43c44323 of April 2024 keeps the same.
Norms are left to transformers, which keeps as much: the states in fp32. The published table names
@8641822b of eleven days before, whose norms kept them in bf16. The runs of Llama took more than
that, by what @6178c7cc, in between, added; those of models with LayerNorm took no more. Only for
multi-head attention without biases, with LoRA on queries and values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from oomdoctor.records.configuration.config import TrainConfig

_CHUNK = 128  # tokens of a chunk of the head and of the loss


@contextlib.contextmanager
def lit_gpt(config: TrainConfig) -> Iterator[None]:
    """Llama models act as lit-gpt's GPT, with its LoRA in place of peft's."""
    from transformers.models.llama import modeling_llama

    from oomdoctor.worker.training import order

    model = modeling_llama.LlamaForCausalLM
    with (
        mock.patch.object(modeling_llama, "LlamaAttention", _attention(config)),
        mock.patch.object(model, "forward", _forward),
        mock.patch.object(order, "add_adapter", _freeze_all_but_lora),
    ):
        yield


def _freeze_all_but_lora(model: Any, config: TrainConfig, task: str) -> Any:
    del config, task
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name)
    return model


def _attention(train: TrainConfig) -> Any:
    import torch
    from torch.nn import functional

    class Attention(torch.nn.Module):  # type: ignore[misc]
        """`LoRAQKVLinear` for queries and values, then `CausalSelfAttention`."""

        def __init__(self, config: Any, layer_idx: int) -> None:
            super().__init__()
            width = config.hidden_size
            self.heads, self.head_dim = config.num_attention_heads, config.head_dim
            self.attn = torch.nn.Linear(width, 3 * width, bias=False)
            self.proj = torch.nn.Linear(width, width, bias=False)
            self.lora_A = torch.nn.Parameter(torch.zeros(2 * train.lora_rank, width))
            self.lora_B = torch.nn.Parameter(torch.zeros(2 * width, train.lora_rank))
            self.lora_dropout = torch.nn.Dropout(train.lora_dropout)

        def forward(self, hidden_states: Any, position_embeddings: Any, *_: Any, **__: Any) -> Any:
            batch, length, width = hidden_states.shape
            qkv = self.attn(hidden_states) + self._update(hidden_states)
            shape = (batch, length, self.heads, 3, self.head_dim)
            parts = qkv.view(shape).permute(0, 2, 3, 1, 4).split((1, 1, 1), dim=2)
            query, key, value = (
                part.reshape(batch, self.heads, length, self.head_dim) for part in parts
            )
            # fp32 angles: they are made anew when `train` sets `max_seq_length`.
            cos, sin = (angle.float() for angle in position_embeddings)
            query, key = (torch.cat((_rotated(t, cos, sin), t[..., :0]), -1) for t in (query, key))
            result = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return self.proj(result.transpose(1, 2).reshape(batch, length, width)), None

        def _update(self, states: Any) -> Any:
            after_a = functional.linear(self.lora_dropout(states), self.lora_A)
            after_b = functional.conv1d(
                after_a.transpose(-2, -1), self.lora_B.unsqueeze(-1), groups=2
            )
            return self._zero_pad(after_b.transpose(-2, -1)) * (train.lora_alpha / train.lora_rank)

        def _zero_pad(self, update: Any) -> Any:
            width = self.proj.in_features
            ranges = ((0, width), (2 * width, 3 * width))
            places = torch.cat([torch.arange(*part, device=update.device) for part in ranges])
            swapped = update.transpose(0, 1)
            padded = swapped.new_zeros((*swapped.shape[:-1], 3 * width)).view(-1, 3 * width)
            padded = padded.index_copy(1, places, swapped.reshape(-1, 2 * width))
            return padded.view((*swapped.shape[:-1], 3 * width)).transpose(0, 1)

    return Attention


def _rotated(states: Any, cos: Any, sin: Any) -> Any:
    import torch

    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return ((states * cos) + (turned * sin)).type_as(states)


def _forward(self: Any, input_ids: Any, labels: Any = None, **kwargs: Any) -> Any:
    return chunked_forward(self.model, self.lm_head, input_ids, labels, **kwargs)


def chunked_forward(
    model: Any, head: Any, input_ids: Any, labels: Any = None, **kwargs: Any
) -> Any:
    """`GPT.forward` with a chunked head, and `chunked_cross_entropy` of its chunks."""
    import torch
    from transformers.modeling_outputs import CausalLMOutputWithPast

    kwargs.pop("num_items_in_batch", None)
    states = model(input_ids=input_ids, use_cache=False, **kwargs).last_hidden_state
    # lightning.fabric's HalfPrecision.convert_output: what the model returned becomes fp32.
    output = [head(part) for part in states.split(_CHUNK, dim=1)]
    logits = [part.float() for part in output]
    del output
    logits[-1] = logits[-1][..., :-1, :]
    losses = [
        torch.nn.functional.cross_entropy(
            part.reshape(-1, part.shape[-1]), wanted.reshape(-1), reduction="none"
        )
        for part, wanted in zip(logits, labels[..., 1:].split(_CHUNK, dim=1), strict=True)
    ]
    loss = torch.cat(losses).mean()
    # The loop in finetune/lora.py has a name for the logits, so they live through the backward.
    loss.register_hook(lambda _, kept=tuple(logits): None)
    return CausalLMOutputWithPast(loss=loss)
