"""A stand-in for vLLM 0.31.0, which computes nothing: no text, no scores.

It has the classes that TRL, verl and OpenRLHF call next to a training, and holds on the card what
vLLM holds by its own rule (`memory`).
"""

from __future__ import annotations

from types import SimpleNamespace

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.outputs import CompletionOutput, RequestOutput, complete
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

__version__ = "0.31.0"
__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
]

AsyncLLMEngine = AsyncLLM


class LLM:
    """An engine in the process of its caller."""

    def __init__(self, model: str, **settings):
        from vllm.core import start

        worker = start(model, **settings)
        self.model, self.model_config = worker.model_runner.model, worker.model_config
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=worker), model_config=self.model_config
        )

    def generate(self, prompts, sampling_params: SamplingParams, **settings) -> list[RequestOutput]:
        self.model.generate()
        room = self.model_config.max_model_len
        tokens = [prompt["prompt_token_ids"] for prompt in prompts]
        return [complete(str(i), p, sampling_params, room) for i, p in enumerate(tokens)]

    def sleep(self, level: int = 1) -> None:
        self.model.held.sleep()

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.model.held.wake(tags)

    def reset_prefix_cache(self) -> None:
        pass
