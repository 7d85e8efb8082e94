"""bitsandbytes whose optimizers are no operators yet, as in 0.46, on a simulated device."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bitsandbytes import functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.records.job.costs import OpCost
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.simulating.costs import cost_of
from oomdoctor.worker.simulating.device import bitsandbytes
from oomdoctor.worker.tracing.calls import OperatorCall

SCALARS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "step": 1, "lr": 1e-3}


class Costs(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[OpCost | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.append(cost_of(OperatorCall(func, args, kwargs, result)))
        return result


@pytest.fixture
def _no_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "bitsandbytes", SimpleNamespace())


def patched(stack: ExitStack, *, cuda: bool) -> None:
    for replacement in bitsandbytes.replacements(cuda=cuda):
        stack.enter_context(replacement)


def states(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Gradient, parameter and two states of 512 elements."""
    half = (torch.empty(512, dtype=torch.bfloat16) for _ in range(2))
    return (*half, *(torch.empty(512, dtype=dtype) for _ in range(2)))


@pytest.mark.usefixtures("_no_operators")
def test_an_8_bit_update_is_an_operator_that_writes_parameter_and_states() -> None:
    with ExitStack() as stack:
        patched(stack, cuda=True)
        stack.enter_context(FakeTensorMode())
        g, p, one, two = states(torch.uint8)
        code, scale = torch.empty(256), torch.empty(2)
        costs = stack.enter_context(Costs())
        blocks = {"absmax1": scale, "absmax2": scale, "qmap1": code, "qmap2": code}
        functional.optimizer_update_8bit_blockwise(
            "adam", g, p, one, two, beta3=0.0, alpha=0.0, **SCALARS, **blocks
        )
    (cost,) = costs.seen
    assert cost is not None
    assert (cost.name, cost.kind) == ("optimizer_update_8bit_blockwise", "elementwise")
    assert cost.bytes_moved == 1024 + 2 * (1024 + 512 + 512) + 2 * 1024 + 2 * 2 * 8


@pytest.mark.usefixtures("_no_operators")
def test_a_32_bit_update_of_one_state_has_no_other() -> None:
    with ExitStack() as stack:
        patched(stack, cuda=True)
        stack.enter_context(FakeTensorMode())
        g, p, one, _ = states(torch.float32)
        costs = stack.enter_context(Costs())
        functional.optimizer_update_32bit("momentum", g, p, one, **SCALARS)
    (cost,) = costs.seen
    assert cost is not None
    assert cost.bytes_moved == 1024 + 2 * (1024 + 2048)


@pytest.mark.usefixtures("_no_operators")
def test_a_simulated_cpu_has_no_such_update() -> None:
    with ExitStack() as stack:
        patched(stack, cuda=False)
        with pytest.raises(UnsupportedError, match="need a GPU; use adamw_torch"):
            functional.optimizer_update_32bit("adam")


def test_a_version_with_operators_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("optimizer_update_8bit_blockwise", "optimizer_update_32bit")
    monkeypatch.setattr(
        torch.ops, "bitsandbytes", SimpleNamespace(**dict.fromkeys(names, object()))
    )
    own = [getattr(functional, name) for name in names]
    with ExitStack() as stack:
        patched(stack, cuda=True)
        assert [getattr(functional, name) for name in names] == own
