"""`vllm serve MODEL`: the settings that the engine reads, and all others."""

from __future__ import annotations

import argparse


class _Serve:
    name = "serve"

    def subparser_init(self, subparsers) -> argparse.ArgumentParser:
        parser = subparsers.add_parser(self.name)
        parser.add_argument("model_tag")
        for name, kind in (
            ("dtype", str),
            ("worker_extension_cls", str),
            ("gpu_memory_utilization", float),
            ("max_model_len", int),
        ):
            parser.add_argument(f"--{name}", type=kind)
        parser.add_argument("--enable_sleep_mode", action="store_true")
        return parser

    def validate(self, args: argparse.Namespace) -> None:
        pass

    def cmd(self, args: argparse.Namespace) -> None:
        raise NotImplementedError


def cmd_init() -> list[_Serve]:
    return [_Serve()]


def run_headless(args: argparse.Namespace) -> None:
    raise NotImplementedError
