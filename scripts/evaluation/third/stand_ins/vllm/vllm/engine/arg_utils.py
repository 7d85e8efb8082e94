"""The settings of an engine: those that it reads have fields, all others are kept."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields


@dataclass(init=False)
class AsyncEngineArgs:
    model: str
    dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    enable_sleep_mode: bool = False
    worker_extension_cls: str = ""
    enable_log_requests: bool = False
    disable_log_stats: bool = False

    def __init__(self, model: str, **settings):
        self.settings = {"model": model, **settings}
        for name, value in self.settings.items():
            setattr(self, name, value)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> AsyncEngineArgs:
        return cls(**{f.name: getattr(args, f.name) for f in fields(cls) if f.name in args})

    def create_engine_config(self, usage_context=None):
        from vllm.core import start

        return start(**self.settings).vllm_config
