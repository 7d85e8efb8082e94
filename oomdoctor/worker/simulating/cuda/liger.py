"""Liger's kernels in a model, and on a simulated device, where the package runs without launches.

All that a Triton kernel reads or writes is allocated by the Python around its launch (chunks of
logits, gradients made in the forward pass, saved tensors), so that runs as it is and the trace sees
it. Read from liger-kernel 0.5-0.8; what they ask of the device is answered for the simulated card.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.simulating.cuda.kernels import Card

Apply = Callable[..., None]  # Liger's function that takes a model

# Norms sum the gradient of their weight in one fp32 row a multiprocessor, for a moment: 2 MiB.
_MULTIPROCESSORS = 128
_AMPERE = (8, 0)  # from it on gradients of the head's weight are summed without a copy


@contextlib.contextmanager
def simulated_kernels(choices: Choices) -> Iterator[None]:
    """Within it Liger's functions take fake CPU tensors for tensors on the card of `choices`.

    What Liger exchanges in transformers is put back at the end. Without the package, or with one
    that does not fit, nothing happens: `check_supported` or `apply_kernels` says so.
    """
    try:
        liger = importlib.import_module("liger_kernel.transformers")
        apply = liger._apply_liger_kernel_to_instance  # imported when it is asked for
        launcher = importlib.import_module("triton.runtime.jit").KernelInterface
    except ImportError:
        yield
        return
    import torch

    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(launcher, "__getitem__", lambda *_: _launch))
        # Whether the gradient of the loss is 1: it is not, the Trainer divides by the tokens.
        enter(mock.patch.object(torch, "equal", lambda *_: False))
        enter(mock.patch.object(torch.cuda, "device", contextlib.nullcontext))
        enter(mock.patch.object(torch.cuda, "get_device_properties", _properties))
        capability = _capability_asked(choices)
        enter(mock.patch.object(torch.cuda, "get_device_capability", capability))
        enter(_taken_for_cuda())
        enter(mock.patch.object(liger, apply.__name__, enter(_undone_at_the_end(apply))))
        yield


def _launch(*args: Any, **kwargs: Any) -> None:
    """In place of a kernel: every tensor handed to it counts as read and written once.

    That is too much for what is only read or only written, and too little for the kernel of the
    cross-entropy; all of them are bound by bandwidth and small beside the matrix products.
    """
    import torch

    values = (*args, *kwargs.values())
    tensors = {
        value.untyped_storage()._cdata: value for value in values if isinstance(value, torch.Tensor)
    }
    with torch.no_grad():
        _launched()(list(tensors.values()))


@cache
def _launched() -> Any:
    """An operator that stands for a kernel's launch, so that it has a cost as others have."""
    import torch

    torch.library.define("oomdoctor::triton_launch", "(Tensor(a!)[] tensors) -> ()")
    kernel = "CompositeExplicitAutograd"  # of every device, fake tensors' as well
    torch.library.impl("oomdoctor::triton_launch", kernel, lambda tensors: None)
    return torch.ops.oomdoctor.triton_launch.default


def _properties(*_: Any) -> Any:
    return SimpleNamespace(multi_processor_count=_MULTIPROCESSORS)


def _capability_asked(choices: Choices) -> Callable[..., tuple[int, int]]:
    """Cards from Ampere on are the same to Liger, and so is each one before."""

    def known(card: Card) -> tuple[int, int]:
        return min(card.compute_capability, _AMPERE)

    def capability(*_: Any) -> tuple[int, int]:
        answer = known(choices.card)
        choices.alike = {card for card in choices.alike if known(card) == answer}
        return answer

    return capability


@contextlib.contextmanager
def _taken_for_cuda() -> Iterator[None]:
    """Liger's functions go the way of "cuda" where a tensor's device has the type "cpu".

    They compare the type with a constant, which is exchanged in their code.
    """
    kept = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("liger_kernel.ops."):
            continue
        for function in vars(module).values():
            if inspect.isfunction(function) and "cuda" in function.__code__.co_consts:
                kept.append((function, function.__code__))
    try:
        for function, code in kept:
            words = tuple("cpu" if word == "cuda" else word for word in code.co_consts)
            function.__code__ = code.replace(co_consts=words)
        yield
    finally:
        for function, code in kept:
            function.__code__ = code


@contextlib.contextmanager
def _undone_at_the_end(apply: Apply) -> Iterator[Apply]:
    """`apply`, after which transformers is at the end what it was before.

    Liger exchanges functions and classes in its modules, not only the model's, and the next rung in
    this process must find them as they were.
    """
    exchanged: list[tuple[Any, str, Any]] = []

    def applied(*args: Any, **kwargs: Any) -> None:
        before = [(owner, dict(vars(owner))) for owner in _exchangeable()]
        try:
            apply(*args, **kwargs)
        finally:
            exchanged.extend(
                (owner, name, value)
                for owner, names in before
                for name, value in names.items()
                if vars(owner)[name] is not value
            )

    try:
        yield applied
    finally:
        for owner, name, value in exchanged:
            setattr(owner, name, value)


def _exchangeable() -> Iterator[Any]:
    """The modules in which Liger puts its own, and the classes of models in them."""
    import torch

    yield from (torch.nn, torch.nn.functional)
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models."):
            yield module
            classes = (value for value in vars(module).values() if inspect.isclass(value))
            yield from (each for each in classes if each.__module__ == name)
