"""The step of GRPO and PPO as verl, OpenRLHF and NeMo-RL compute it.

They run the model on whole sequences and score all tokens of a micro-batch, where TRL keeps the
logits of completions alone. What they score before the step (old log-probabilities, those of the
reference, advantages) is in the batch. Read from verl 0.9.1 (`logprobs_from_logits`,
`FSDPEngineWithLMHead.forward_step`), OpenRLHF 0.11.2 (`Actor.forward`, `log_probs_from_logits`,
`ActorPPOTrainer.training_step`) and NeMo-RL (`ClippedPGLossFn`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import torch
from torch.nn import Module
from torch.nn.functional import log_softmax

from oomdoctor.records.configuration.config import TrainConfig, has_reference_pass, scored_tokens
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.rollouts import ROLLOUTS
from oomdoctor.worker.replacing import module_if_there
from oomdoctor.worker.training.setup import Setup

if TYPE_CHECKING:
    from transformers import Trainer

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_FLASH = "flash_attn"
_CLIP = 0.2
_GROUPS = 64  # verl takes a token at a time; so many groups of tokens need 1/64 of the logits more
_SCORED = ("old_log_probs", "advantages", "mask", "ref_log_probs")


def scored_before(config: TrainConfig, rows: int) -> dict[str, torch.Tensor]:
    """What a batch of `rows` sequences has beside its tokens: (rows, tokens of a completion)."""
    names = _SCORED if has_reference_pass(config) else _SCORED[:-1]
    return {name: torch.ones((rows, scored_tokens(config))) for name in names}


def policy(trainer: type[Trainer], setup: Setup) -> type[Trainer]:
    """A subclass of `trainer` with the step of the rung's program."""
    config = setup.config
    facts = ROLLOUTS[config.rl_program]
    score = _score(setup)

    class PolicyTrainer(trainer):  # type: ignore[misc]
        """The Trainer with a clipped policy loss, and the reference's divergence from it."""

        outputs: object = None

        def training_step(self, *args: object, **kwargs: object) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(*args, **kwargs)
            self.outputs = None
            return loss

        def compute_loss(
            self,
            model: Module,
            inputs: Mapping[str, torch.Tensor],
            return_outputs: bool = False,
            **_: object,
        ) -> torch.Tensor | tuple[torch.Tensor, object]:
            if hasattr(model, "_original_forward"):  # accelerate casts what it returns to float32
                self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
            scored = {name: inputs[name] for name in _SCORED if name in inputs}
            texts = {name: value for name, value in inputs.items() if name not in scored}
            with self.accelerator.autocast():
                outputs = model(**texts, use_cache=False)
                if facts.scores == "cross_entropy":  # OpenRLHF keeps them in the backward pass
                    outputs["logits"] = outputs["logits"].to(torch.float32)
                    self.outputs = outputs
                labels = torch.roll(inputs["input_ids"], -1, 1)
                log_probs = score(outputs["logits"].flatten(0, 1), labels.flatten())
                loss = _loss(log_probs, config, **scored)
            return (loss, outputs) if return_outputs else loss

    return PolicyTrainer


def _loss(
    log_probs: torch.Tensor,
    config: TrainConfig,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    ref_log_probs: torch.Tensor | None = None,
) -> torch.Tensor:
    """The loss of a micro-batch, whose `log_probs` are those of all tokens."""
    scored = scored_tokens(config)
    chosen = log_probs.view(-1, config.sequence_length)[:, -scored - 1 : -1].reshape_as(
        old_log_probs
    )
    ratio = (chosen - old_log_probs).exp()
    losses = -torch.min(ratio * advantages, ratio.clamp(1 - _CLIP, 1 + _CLIP) * advantages)
    if ref_log_probs is not None:
        off = ref_log_probs - chosen
        losses = losses + off.exp() - off - 1
    return (losses * mask).sum() / mask.sum()


def _score(setup: Setup) -> Score:
    """How the program computes log-probabilities from logits of (tokens, vocabulary)."""
    kind = ROLLOUTS[setup.config.rl_program].scores
    if kind == "log_softmax":
        return _by_softmax
    if _has_kernel(setup):
        return _kernel(in_place=kind == "by_row", simulated=setup.simulated)
    return _by_row if kind == "by_row" else _by_logsumexp


def _has_kernel(setup: Setup) -> bool:
    """Whether flash-attn is there, whose Triton kernel computes cross-entropy."""
    config, facts = setup.config, ROLLOUTS[setup.config.rl_program]
    if setup.simulated:
        asked = ATTENTIONS[config.attention].module == _FLASH
        by_critic = facts.critic_takes_flash_attention and config.critic != "none"
        as_cuda = setup.job.simulation is not None and setup.job.simulation.as_cuda
        return as_cuda and (asked or by_critic or facts.requires_flash_attention)
    return setup.device.type == "cuda" and module_if_there(_FLASH) is not None


def _kernel(*, in_place: bool, simulated: bool) -> Score:
    """flash-attn's cross-entropy, whose gradient may take the place of the logits."""

    def score(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if simulated:
            return -_CrossEntropy.apply(logits, labels, in_place)
        triton = import_module("flash_attn.ops.triton.cross_entropy")
        return -triton.cross_entropy_loss(logits, labels, inplace_backward=in_place)[0]

    return score


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """What flash-attn 2.8's kernel allocates (`ops/triton/cross_entropy`)."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        logits: torch.Tensor,
        labels: torch.Tensor,
        in_place: bool,
    ) -> torch.Tensor:
        losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        ctx.save_for_backward(logits, torch.empty_like(losses), labels)
        ctx.in_place = in_place
        return losses

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        logits, _, _ = ctx.saved_tensors
        return logits if ctx.in_place else torch.empty_like(logits), None, None


def _by_softmax(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = logits.to(torch.float32)
    return log_softmax(logits, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def _by_row(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A softmax for few tokens at a time; that of float32 logits is a sum for each token."""
    if logits.dtype == torch.float32:
        return _by_logsumexp(logits, labels)
    size = math.ceil(len(logits) / _GROUPS)
    parts = zip(logits.split(size), labels.split(size), strict=True)
    return torch.cat(
        [log_softmax(some, dim=-1).gather(-1, at.unsqueeze(-1)).squeeze(-1) for some, at in parts]
    )


def _by_logsumexp(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    size = math.ceil(len(logits) / _GROUPS)
    return chosen - torch.cat([some.logsumexp(-1) for some in logits.split(size)])
