"""Run Liger's Python code on a simulated device, without launching its Triton kernels.

The Python code around a launch allocates everything that the kernel reads or writes: chunks of
logits, gradients made in the forward pass, saved tensors. That code runs unchanged, so the trace
sees it. Its questions about the device are answered for the simulated card. Read from liger-kernel
0.5-0.8.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace

import torch

from oomdoctor.worker.replacing import own_operator, replaced
from oomdoctor.worker.simulating.cuda.choices import Choices
from oomdoctor.worker.tracing.tensors import memory_of

Apply = Callable[..., None]  # Liger's function that takes a model

# Norms briefly sum the gradient of their weight in one fp32 row per multiprocessor: 2 MiB.
_MULTIPROCESSORS = 128
_AMPERE = (8, 0)  # from here on, gradients of the head's weight are summed without a copy


@contextlib.contextmanager
def simulated_kernels(choices: Choices) -> Iterator[None]:
    """Make Liger's functions treat fake CPU tensors as tensors on the card of `choices`.

    At the end, transformers is as it was before Liger changed it. If the package is missing or does
    not fit, this context does nothing: `check_supported` or `apply_kernels` reports that.
    """
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        try:
            enter(no_driver_needed())
            liger = importlib.import_module("liger_kernel.transformers")
            apply = liger._apply_liger_kernel_to_instance  # this access imports it
            launcher = importlib.import_module("triton.runtime.jit").KernelInterface
        except ImportError:
            yield
            return
        # There is no GPU to launch a kernel on.
        enter(replaced(launcher, "__getitem__", lambda *_: launch))
        # Liger asks if the gradient of the loss is 1. It is not: the Trainer divides by the tokens.
        enter(replaced(torch, "equal", lambda *_: False))
        # Liger selects the GPU of a tensor, and there is no GPU.
        enter(replaced(torch.cuda, "device", contextlib.nullcontext))
        # Liger asks for the number of multiprocessors.
        properties = SimpleNamespace(multi_processor_count=_MULTIPROCESSORS)
        enter(replaced(torch.cuda, "get_device_properties", lambda *_: properties))
        # Liger's kernels differ by compute capability, so the simulated card answers.
        enter(replaced(torch.cuda, "get_device_capability", partial(_capability, choices)))
        enter(_cpu_counts_as_cuda())
        # Liger changes classes of transformers, which the next rung must find unchanged.
        enter(replaced(liger, apply.__name__, enter(_undone_at_the_end(apply))))
        yield


def no_driver_needed() -> contextlib.AbstractContextManager[None]:
    """Let kernels be defined where no GPU is.

    In Triton 3.2, the definition of a kernel with several configurations asks the driver for a
    function that times them.

    Raises:
        ImportError: there is no Triton.
    """
    driver = importlib.import_module("triton.runtime.driver").driver
    if "active" not in vars(driver):  # newer ones ask nobody before a launch
        return contextlib.nullcontext()
    # There is no driver to ask. Nothing is timed, because nothing is launched.
    return replaced(driver, "active", SimpleNamespace(get_benchmarker=lambda: None))


def launch(*args: object, **kwargs: object) -> None:
    """Stand in for a kernel: every tensor passed to it counts as read and written once.

    That is too much for tensors that are only read or only written, and too little for the
    cross-entropy kernel. All of these kernels are bound by bandwidth and small compared with the
    matrix products.
    """
    values = (*args, *kwargs.values())
    tensors = {memory_of(value): value for value in values if isinstance(value, torch.Tensor)}
    with torch.no_grad():  # an operator stands for the launch, so that it has a cost
        operator = own_operator("triton_launch", "(Tensor(a!)[] tensors) -> ()")
        operator(list(tensors.values()))


def _capability(choices: Choices, *_: object) -> tuple[int, int]:
    """To Liger, all cards from Ampere on are alike; older ones differ by capability."""
    answers = {card: min(card, _AMPERE) for card in choices.alike}
    answer = answers[choices.card]
    choices.alike = {card for card in answers if answers[card] == answer}
    return answer


@contextlib.contextmanager
def _cpu_counts_as_cuda() -> Iterator[None]:
    """Make Liger's functions take their "cuda" branch for tensors on the CPU.

    They compare the device type with a constant, so the constant in their code is replaced.
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
    """Yield `apply`, and undo at the end what it did to transformers.

    Liger replaces functions and classes in the modules of transformers, not only in the model. The
    next rung in this process must find them as they were.
    """
    changed: list[tuple[ModuleType | type, str, object]] = []

    def applied(*args: object, **kwargs: object) -> None:
        before = [(owner, dict(vars(owner))) for owner in _owners()]
        try:
            apply(*args, **kwargs)
        finally:
            changed.extend(
                (owner, name, value)
                for owner, names in before
                for name, value in names.items()
                if vars(owner)[name] is not value
            )

    try:
        yield applied
    finally:
        for owner, name, value in changed:
            setattr(owner, name, value)


def _owners() -> Iterator[ModuleType | type]:
    """The modules in which Liger replaces something, and the model classes in them."""
    yield from (torch.nn, torch.nn.functional)
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models."):
            yield module
            classes = (value for value in vars(module).values() if inspect.isclass(value))
            yield from (each for each in classes if each.__module__ == name)
