"""How completions are sampled: all settings are taken, and the lengths are used."""

from __future__ import annotations

from enum import Enum


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class StructuredOutputsParams:
    def __init__(self, **settings):
        self.__dict__.update(settings)


class SamplingParams:
    prompt_logprobs: int | None = None

    def __init__(self, n: int = 1, max_tokens: int | None = 16, logprobs=None, **settings):
        self.__dict__.update(settings)
        self.n, self.max_tokens, self.logprobs = n, max_tokens, logprobs

    def clone(self) -> SamplingParams:
        return SamplingParams(**self.__dict__)
