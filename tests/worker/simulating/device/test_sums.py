"""Gradients are added in place where autograd does without a dispatch mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.worker.simulating.device import answers
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.tracing.calls import OperatorCall


class Sums(TorchDispatchMode):
    """Answers as the simulated device does, and notes which sums were in place."""

    def __init__(self) -> None:
        super().__init__()
        self.in_place: list[bool] = []
        self.alone = answers.only_the_engine()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor:
            answer = answers.sum_of_gradients(self.alone, args)
            self.in_place.append(answer is not None)
            if answer is not None:
                return answer
        return func(*args, **(kwargs or {}))


def in_backward(loss: Callable[[torch.Tensor], torch.Tensor]) -> list[bool]:
    """Whether the sums of the backward pass of a loss were in place."""
    made = loss(torch.ones(4, 4, requires_grad=True))
    watched = Sums()
    with watched:
        made.backward()
    return watched.in_place


def twice(tensor: torch.Tensor) -> torch.Tensor:
    used = tensor * 2
    return ((used * 3) + (used * used.detach())).sum()


def test_a_gradient_that_only_the_engine_holds_is_added_to() -> None:
    assert in_backward(twice) == [True]


def test_a_gradient_that_somebody_else_holds_is_not() -> None:
    kept: list[torch.Tensor] = []

    def held(tensor: torch.Tensor) -> torch.Tensor:
        used = tensor * 2
        one, other = used * 3, used * 4
        for each in (one, other):
            each.grad_fn.register_hook(lambda inputs, _: kept.extend(inputs))  # type: ignore[union-attr]
        return (one + other).sum()

    assert in_backward(held) == [False]


def test_an_expanded_gradient_is_not() -> None:
    def expanded(tensor: torch.Tensor) -> torch.Tensor:
        used = tensor * 2
        return used.sum() + used.sum()

    assert in_backward(expanded) == [False]


def test_a_sum_in_python_is_not() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * 1 + gradient * 1

    assert in_backward(lambda tensor: Doubled.apply(tensor).sum()) == [False]  # type: ignore[no-untyped-call]


def test_the_forward_pass_is_left_alone() -> None:
    watched = Sums()
    with watched:
        torch.ones(2) + torch.ones(2)
        with torch.no_grad():
            torch.ones(2) + torch.ones(2)
    assert watched.in_place == [False, False]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3, 4), torch.ones(3, 4).T, torch.ones(2, 3, 4).permute(1, 0, 2), torch.ones(1, 4)],
)
def test_dense_in_any_order(tensor: torch.Tensor) -> None:
    assert answers._is_dense(tensor)


@pytest.mark.parametrize("tensor", [torch.ones(3, 4)[:, :2], torch.ones(1).expand(4)])
def test_not_dense(tensor: torch.Tensor) -> None:
    assert not answers._is_dense(tensor)


@pytest.mark.parametrize("cuda", [True, False])
def test_the_same_on_a_device_like_cuda_and_on_no_other(cuda: bool) -> None:
    with simulated_device(cuda=cuda) as device:
        seen: list[str] = []

        class Observer:
            def begins(self) -> None: ...

            def note_operator(self, call: OperatorCall) -> None:
                if call.func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
                    seen.append("in place" if call.result is call.args[0] else "new")

        with device.observed_by(Observer()):
            twice(torch.ones(4, 4, requires_grad=True)).backward()
    assert seen == ["in place" if cuda else "new"]


def test_the_gradient_of_an_index_is_written_to_its_zeros() -> None:
    found: list[bool] = []

    class Watched(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.index_put.default:
                found.append(answers.gradient_of_index(args) is args[0])
            return func(*args, **(kwargs or {}))

    made = torch.ones(4, requires_grad=True)[torch.tensor([0, 1])].sum()
    with Watched():
        made.backward()
        torch.ops.aten.index_put(torch.zeros(4), [torch.tensor([1])], torch.ones(1), True)

    assert found == [True, False]


def test_values_of_another_type_are_refused_as_by_the_kernel() -> None:
    for device in (nullcontext(), simulated_device(cuda=True)):
        with device, pytest.raises(RuntimeError, match="source and destination dtypes match"):
            torch.zeros(4)[torch.tensor([0, 2])] = torch.zeros(2, dtype=torch.bfloat16)
