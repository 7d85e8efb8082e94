"""What the code of published runs did differently from today's, as changes for one simulation.

Each adaptation is named by its cause, says where that was read, and patches libraries only while a
row that ran with such code is predicted. None of them carries a number taken from a measurement.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from old_code import lit_gpt
from oomdoctor.analysis.allocator.settings import EqualBlocks, equal_blocks_of
from oomdoctor.records.configuration.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A difference: what the old code did, where that stands, and the patch that does it."""

    did: str
    source: str
    apply: Callable[[TrainConfig], AbstractContextManager[None]]


@contextlib.contextmanager
def _shifted_logits(_: TrainConfig) -> Iterator[None]:
    from transformers.loss.loss_utils import LOSS_MAPPING, fixed_cross_entropy

    def loss_of(
        logits: Any,
        labels: Any,
        vocab_size: int,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        **_: Any,
    ) -> Any:
        logits = logits.float()
        shifted = logits[..., :-1, :].contiguous()
        wanted = labels[..., 1:].contiguous().view(-1)
        return fixed_cross_entropy(
            shifted.view(-1, vocab_size), wanted, num_items_in_batch, ignore_index
        )

    with mock.patch.dict(LOSS_MAPPING, ForCausalLM=loss_of):
        yield


@contextlib.contextmanager
def _linear_experts(_: TrainConfig) -> Iterator[None]:
    import torch
    from transformers.activations import ACT2FN
    from transformers.models.mixtral import modeling_mixtral

    class Expert(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.w1 = torch.nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
            self.w2 = torch.nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
            self.w3 = torch.nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
            self.act_fn = ACT2FN[config.hidden_act]

        def forward(self, states: Any) -> Any:
            return self.w2(self.act_fn(self.w1(states)) * self.w3(states))

    class Block(torch.nn.Module):  # type: ignore[misc]
        """Tokens go to the experts in equal shares: a simulation has no values to route by."""

        def __init__(self, config: Any) -> None:
            super().__init__()
            self.top_k, self.count = config.num_experts_per_tok, config.num_local_experts
            self.gate = torch.nn.Linear(config.hidden_size, self.count, bias=False)
            self.experts = torch.nn.ModuleList(Expert(config) for _ in range(self.count))

        def forward(self, hidden_states: Any) -> Any:
            shape = hidden_states.shape
            states = hidden_states.view(-1, shape[-1])
            weights = torch.nn.functional.softmax(self.gate(states), dim=1, dtype=torch.float)
            weights, chosen = torch.topk(weights, self.top_k, dim=-1)
            weights = (weights / weights.sum(dim=-1, keepdim=True)).to(states.dtype)
            mask = torch.nn.functional.one_hot(chosen, self.count).permute(2, 1, 0)
            result = torch.zeros_like(states)
            share = states.shape[0] * self.top_k // self.count
            for expert in self.experts:
                # `torch.where(mask[number])`, which would depend on values.
                token, rank = torch.zeros(share, 2, dtype=mask.dtype).unbind(1)
                own = states[None, token].reshape(-1, shape[-1])
                scored = expert(own) * weights[token, rank, None]
                result.index_add_(0, token, scored.to(states.dtype))
            return result.reshape(shape)

    with mock.patch.object(modeling_mixtral, "MixtralSparseMoeBlock", Block):
        yield


@contextlib.contextmanager
def _single_tensor_adamw(_: TrainConfig) -> Iterator[None]:
    with mock.patch("torch.optim.adam._default_to_fused_or_foreach", lambda *_, **__: (False,) * 2):
        yield


@contextlib.contextmanager
def _states_of_8_bit_throughout(_: TrainConfig) -> Iterator[None]:
    from bitsandbytes.optim import GlobalOptimManager

    with mock.patch.object(GlobalOptimManager, "register_module_override", lambda *_: None):
        yield


@contextlib.contextmanager
def _states_in_blocks_of_2048(_: TrainConfig) -> Iterator[None]:
    import torch
    from bitsandbytes.optim.optimizer import Optimizer2State

    init_today = Optimizer2State.init_state

    def init_state(self: Any, group: Any, parameter: Any, *index: int) -> None:
        init_today(self, group, parameter, *index)
        state = self.state[parameter]
        for name in ("absmax1", "absmax2"):
            if name in state:
                state[name] = torch.zeros(math.ceil(parameter.numel() / 2048))

    with mock.patch.object(Optimizer2State, "init_state", init_state):
        yield


@contextlib.contextmanager
def _adapters_like_base(_: TrainConfig) -> Iterator[None]:
    from peft.tuners import tuners_utils

    with mock.patch.object(tuners_utils, "cast_adapter_dtype", lambda *_, **__: None):
        yield


@contextlib.contextmanager
def _loss_of_qwen_1(_: TrainConfig) -> Iterator[None]:
    from torch.nn.functional import cross_entropy
    from transformers.loss.loss_utils import LOSS_MAPPING

    def loss_of(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
        shifted = logits[..., :-1, :].contiguous()
        wanted = labels[..., 1:].contiguous()
        return cross_entropy(shifted.view(-1, vocab_size), wanted.view(-1))

    with mock.patch.dict(LOSS_MAPPING, ForCausalLM=loss_of):
        yield


@contextlib.contextmanager
def _bert_4_15(_: TrainConfig) -> Iterator[None]:
    import torch
    from transformers.models.bert import modeling_bert

    class Softmax(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, scores: Any) -> Any:
            result = torch.softmax(scores, dim=-1)
            ctx.save_for_backward(scores, result)
            return result

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            scores, result = ctx.saved_tensors
            return torch._softmax_backward_data(grad, result, -1, scores.dtype)

    def attend(
        module: Any, query: Any, key: Any, value: Any, _: Any, dropout: float = 0.0, **__: Any
    ) -> Any:
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        mask = torch.zeros(query.shape[0], 1, 1, key.shape[2])
        chances = torch.nn.functional.dropout(
            Softmax.apply(scores + mask), dropout, module.training
        )
        return torch.matmul(chances, value).transpose(1, 2).contiguous(), chances

    with mock.patch.object(modeling_bert, "eager_attention_forward", attend):
        yield


@contextlib.contextmanager
def _lowest_of_equal_blocks(_: TrainConfig) -> Iterator[None]:
    def lowest(_: tuple[int, int]) -> EqualBlocks:
        return equal_blocks_of((2, 11))

    with (
        mock.patch("oomdoctor.analysis.simulator.sizes.equal_blocks_of", lowest),
        mock.patch("cases.differing_lengths.equal_blocks_of", lowest),
    ):
        yield


ADAPTATIONS = {
    "shifted logits": Adaptation(
        "copies the fp32 logits before it drops the last position",
        "transformers 4.45-4.48 loss/loss_utils.py ForCausalLMLoss; until 4.44 in each model",
        _shifted_logits,
    ),
    "linear experts": Adaptation(
        "has three linear layers for each expert, which bitsandbytes quantises, in a loop",
        "transformers 4.36-4.57 models/mixtral/modeling_mixtral.py MixtralSparseMoeBlock",
        _linear_experts,
    ),
    "single-tensor AdamW": Adaptation(
        "updates one parameter after the other",
        "transformers 4.15 optimization.py AdamW",
        _single_tensor_adamw,
    ),
    "8-bit states throughout": Adaptation(
        "makes bitsandbytes' optimizer itself, so that embeddings have 8-bit states as well",
        "transformers docs perf_train_gpu_one.mdx @0016acf7ef, torchtune's recipes; only the "
        "Trainer's create_optimizer asks for 32 bits, and transformers 4.33-4.51, whose class "
        "check matched nothing (PR 37331)",
        _states_of_8_bit_throughout,
    ),
    "8-bit states in blocks of 2048": Adaptation(
        "keeps one fp32 maximum for each 2,048 elements of an 8-bit state, today for each 256",
        "bitsandbytes 0.35 (the lowest that was read) to 0.43 optim/optimizer.py "
        "Optimizer2State.init_state",
        _states_in_blocks_of_2048,
    ),
    "adapters like the base": Adaptation(
        "keeps adapters in the type of the base and casts no inputs for them",
        "peft below 0.12 tuners/tuners_utils.py, which lacks autocast_adapter_dtype",
        _adapters_like_base,
    ),
    "loss of Qwen 1": Adaptation(
        "copies the logits without their last position in their own type, which autocast then "
        "casts to fp32",
        "huggingface Qwen/Qwen-7B-Chat modeling_qwen.py QWenLMHeadModel.forward, in the copy "
        "github undefdev/Qwen-7B-Chat @04df5dd57b",
        _loss_of_qwen_1,
    ),
    "BERT 4.15 on torch 1.10": Adaptation(
        "adds an fp32 attention mask always, and softmax keeps its input for the backward pass",
        "transformers 4.15 modeling_bert.py BertSelfAttention; torch below 1.11 derivatives.yaml "
        "_softmax (transformers pytorch_utils.softmax_backward_data tells both forms)",
        _bert_4_15,
    ),
    "lowest of equal blocks": Adaptation(
        "uses of several free blocks of one size the one with the lowest address, today the one "
        "that was made first",
        "torch below 2.12 c10/cuda/CUDACachingAllocator.cpp BlockComparatorSize; "
        "oomdoctor.analysis.allocator.settings.equal_blocks_of",
        _lowest_of_equal_blocks,
    ),
    "lit-gpt": Adaptation(
        "has one qkv product with LoRA of its own, a chunked head and loss, and fp32 logits that "
        "live through the backward pass",
        "github Lightning-AI/litgpt lit_gpt/lora.py, model.py, utils.py and finetune/lora.py "
        "@0cc02afa",
        lit_gpt.lit_gpt,
    ),
}
