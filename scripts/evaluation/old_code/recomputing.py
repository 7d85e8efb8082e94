"""What published runs recomputed in the backward pass differently, as changes for one job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from unittest import mock

from oomdoctor.records.configuration.config import TrainConfig


@contextlib.contextmanager
def checkpointing_by(change: Callable[[Any, Callable[[], None]], None]) -> Iterator[None]:
    """Let `change` take a model's turn to be checkpointed, with what the rung itself would do."""
    from oomdoctor.worker.training import order
    from oomdoctor.worker.training.techniques.checkpointing import enable_checkpointing

    (own,) = (row for row in order.TECHNIQUES if row.act is enable_checkpointing)

    def act(setup: Any) -> None:
        change(setup.model, lambda: own.act(setup) if own.of(setup.job) else None)

    changed = own._replace(of=lambda _: True, act=act)
    rows = tuple(changed if row is own else row for row in order.TECHNIQUES)
    with mock.patch.object(order, "TECHNIQUES", rows):
        yield


@contextlib.contextmanager
def operators_recomputed(_: TrainConfig) -> Iterator[None]:
    import torch
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    from oomdoctor.worker.training.techniques.checkpointing import _layers

    aten = torch.ops.aten
    product = aten.mm.default
    saved = (
        product,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    )

    def contexts() -> Any:
        products = {True: 0, False: 0}

        def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            if operator == product:
                products[context.is_recompute] += 1
                if products[context.is_recompute] % 2 == 0:
                    return CheckpointPolicy.PREFER_RECOMPUTE
            keep = operator in saved
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    def checkpointed(forward: Any) -> Any:
        @wraps(forward)
        def again(*given: Any, **named: Any) -> Any:
            return checkpoint(
                forward,
                *given,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=contexts,
                **named,
            )

        return again

    def enable_checkpointing(model: Any, _: Any) -> None:
        for layer in _layers(model):
            layer.forward = checkpointed(layer.forward)

    with checkpointing_by(enable_checkpointing):
        yield


@contextlib.contextmanager
def reentrant(config: TrainConfig) -> Iterator[None]:
    from oomdoctor.worker.training.techniques import checkpointing

    def enable_checkpointing(model: Any, enable: Callable[[], None]) -> None:
        enable()
        if config.method != "full":
            model.enable_input_require_grads()

    with (
        mock.patch.object(checkpointing, "_SETTINGS", {"use_reentrant": True}),
        checkpointing_by(enable_checkpointing),
    ):
        yield
