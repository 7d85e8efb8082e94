"""An engine that is awaited. What the worker does, it does in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

from vllm.outputs import RequestOutput, complete


class AsyncLLM:
    def __init__(self, worker):
        self.worker = worker
        self.held, self.model_config = worker.vllm_config.held, worker.model_config
        self.asleep = False
        states: dict[str, object] = {}
        self.output_processor = SimpleNamespace(
            request_states=states, get_num_unfinished_requests=lambda: len(states)
        )

    @classmethod
    def from_engine_args(cls, args) -> AsyncLLM:
        from vllm.core import start

        return cls(start(**args.settings))

    @classmethod
    def from_vllm_config(cls, vllm_config, usage_context=None, **settings) -> AsyncLLM:
        return cls(vllm_config.worker)

    async def generate(
        self, prompt, sampling_params, request_id: str, **settings
    ) -> AsyncIterator[RequestOutput]:
        self.worker.model_runner.model.generate()
        room = self.model_config.max_model_len
        yield complete(request_id, list(prompt["prompt_token_ids"]), sampling_params, room)

    async def collective_rpc(self, method: str, timeout=None, args=(), kwargs=None) -> list[object]:
        call = getattr(self.worker, method)
        return [await asyncio.to_thread(call, *args, **(kwargs or {}))]

    async def sleep(self, level: int = 1, **settings) -> None:
        self.asleep = True
        self.held.sleep()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self.asleep = False
        self.held.wake(tags)

    async def is_sleeping(self) -> bool:
        return self.asleep

    async def reset_prefix_cache(self, **settings) -> bool:
        return True

    async def reset_mm_cache(self) -> None:
        pass

    async def reset_encoder_cache(self) -> None:
        pass

    async def pause_generation(self, **settings) -> None:
        pass

    async def resume_generation(self) -> None:
        pass

    async def wait_for_requests_to_drain(self, **settings) -> None:
        pass

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def list_loras(self) -> set[int]:
        return set()
