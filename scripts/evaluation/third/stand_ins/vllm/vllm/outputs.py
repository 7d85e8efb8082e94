"""What an engine returns: completions of the length that was asked for, of harmless tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.sampling_params import SamplingParams


@dataclass
class Logprob:
    logprob: float
    rank: int | None = 1
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    routed_experts: None = None
    finish_reason: str | None = "length"
    stop_reason: None = None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: None = None
    finished: bool = True
    metrics: None = None
    num_cached_tokens: int = 0
    kv_transfer_params: dict | None = field(default=None)


def complete(number: str, prompt: list[int], sampling: SamplingParams, room: int) -> RequestOutput:
    """`n` completions of `max_tokens` tokens, or of the `room` that the model has left."""
    length = max(1, min(sampling.max_tokens or room, room - len(prompt)))
    tokens = [10 + (len(prompt) + i) % 50 for i in range(length)]
    scores = None
    if sampling.logprobs is not None:
        scores = [{token: Logprob(-1.0)} for token in tokens]
    outputs = [CompletionOutput(i, "", tokens, -float(length), scores) for i in range(sampling.n)]
    return RequestOutput(number, None, prompt, outputs)
