"""A server that nobody asks: programs call the engine in its process."""

from __future__ import annotations


def build_app(args):
    from fastapi import FastAPI

    return FastAPI()


async def init_app_state(engine, state, args) -> None:
    pass
