"""The worst routing of a mixture: every token goes to the same experts.

Routers choose with `topk` or `argmax` among as many scores as there are experts. Here these return
the first experts for every token, in a measured step and in a simulated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.tracing import real_values
from oomdoctor.worker.training.inspection import count_experts
from oomdoctor.worker.training.setup import Setup

# What chooses -> the place and the default of its argument `dim`.
_CHOOSING: dict[str, tuple[int, int | None]] = {"topk": (2, -1), "argmax": (1, None)}
Choice = Callable[..., object]


def check_routing(setup: Setup) -> None:
    """Only a mixture has routes.

    Raises:
        UnsupportedError: the model has no experts.
    """
    if not count_experts(setup.model_config):
        kind = type(setup.model).__name__
        raise UnsupportedError(f"{kind} has no experts to route to; leave out routing")


@contextmanager
def to_the_same_experts(setup: Setup) -> Iterator[None]:
    """In this context the routers of a model choose the same experts for every token."""
    experts = count_experts(setup.model_config)
    with ExitStack() as stack:
        for owner in (torch, torch.Tensor):
            for name, (place, usual) in _CHOOSING.items():
                chosen = _of_the_first(getattr(owner, name), place, usual, experts)
                stack.enter_context(replaced(owner, name, chosen))
        yield


def _of_the_first(own: Choice, place: int, usual: int | None, experts: int) -> Choice:
    def choose(*args: object, **kwargs: object) -> object:
        result = own(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        dim = args[place] if len(args) > place else kwargs.get("dim", usual)
        assert isinstance(scores, torch.Tensor)
        if isinstance(dim, int) and scores.dim() and scores.shape[dim] == experts:
            # `topk` returns values as well, and keeps the dimension.
            indices = result[1] if isinstance(result, tuple) else result
            assert isinstance(indices, torch.Tensor)
            _choose_first(indices, dim if isinstance(result, tuple) else None)
        return result

    return choose


def _choose_first(indices: torch.Tensor, dim: int | None) -> None:
    """Make `indices` 0, 1, ... along `dim`; 0 everywhere without a dimension."""
    count, shape = 1, [1] * indices.dim()
    if dim is not None:
        count = shape[dim] = indices.shape[dim]
    first = torch.arange(count, device=indices.device).view(shape)
    # The backward pass of `topk` has the indices, so not even autograd may notice the change.
    indices.data.copy_(first)
    if isinstance(indices, FakeTensor):
        with real_values.computing():
            values = torch.arange(count).view(shape).expand(indices.shape).contiguous()
        real_values.know(indices, values)
