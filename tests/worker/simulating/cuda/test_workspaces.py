"""The workspaces of cuBLAS: how large they are, how long they stay, by card and by torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulated_steps import simulation_job
from tiny_models import tiny_job
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.simulating.cuda import choices
from oomdoctor.worker.simulating.cuda.choices import workspaces_of
from oomdoctor.worker.simulating.simulate import simulated_rung
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import Lasting, Passing

A100, RTX_4090, H100 = (8, 0), (8, 9), (9, 0)
MIB = 1024**2
BYTES = 8_519_680
aten = torch.ops.aten


class Recorder(TorchDispatchMode):
    """Keeps the workspaces that operators need."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        self.found: set[Lasting | Passing] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.update(workspaces_of(OperatorCall(func, args, {}, None), self.card))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    monkeypatch.setattr(choices, "torch_release", lambda: found)
    return found


def of_a_step(card: Card, *, bias: bool) -> set[Lasting | Passing]:
    with FakeTensorMode(), Recorder(card) as recorder:
        torch.nn.Linear(4, 4, bias=bias)(torch.empty(2, 4, requires_grad=True)).sum().backward()
    return recorder.found


@pytest.mark.parametrize("release", [(2, 14)], indirect=True)
@pytest.mark.parametrize(("card", "size"), [(A100, BYTES), (RTX_4090, BYTES), (H100, 32 * MIB)])
def test_each_thread_keeps_one(release: tuple[int, int], card: Card, size: int) -> None:
    kept = {Lasting("cublas", size), Lasting("cublas of the autograd thread", size)}

    assert of_a_step(card, bias=False) == of_a_step(card, bias=True) == kept


@pytest.mark.parametrize("release", [(2, 15)], indirect=True)
@pytest.mark.parametrize(("card", "size"), [(A100, BYTES), (H100, 32 * MIB)])
def test_each_call_frees_its_own_from_2_15_on(
    release: tuple[int, int], monkeypatch: pytest.MonkeyPatch, card: Card, size: int
) -> None:
    assert of_a_step(card, bias=False) == {Passing("cublas", size)}
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    assert len(of_a_step(card, bias=False)) == 2


@pytest.mark.parametrize(
    ("release", "own"),
    [
        ((2, 8), [Lasting("cublas", BYTES), Passing("cublasLt", MIB)]),
        ((2, 10), [Lasting("cublas", BYTES), Lasting("cublasLt", MIB)]),
        ((2, 11), [Lasting("cublas", BYTES)]),
        ((2, 15), [Passing("cublasLt", MIB)]),
    ],
    indirect=["release"],
)
def test_with_a_bias_cublaslt_has_one(
    release: tuple[int, int], own: list[Lasting | Passing]
) -> None:
    with FakeTensorMode():
        call = (torch.empty(8), torch.empty(4, 6), torch.empty(6, 8))

    assert list(workspaces_of(OperatorCall(aten.addmm.default, call, {}, None), A100)) == own


def test_other_operators_need_none() -> None:
    assert (
        workspaces_of(
            OperatorCall(aten.add.Tensor, (torch.empty(4), torch.empty(4)), {}, None), A100
        )
        == ()
    )


def test_the_step_keeps_that_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "torch_release", lambda: (2, 14))
    job = tiny_job("dense", method="lora", use_dora=True)  # peft multiplies to know the lengths

    with simulated_rung(simulation_job(job), PhaseFile(None), shallow=False) as recorder:
        for size in (1, 2):
            tape = recorder.record(size).tape
            own = [number for number, block in enumerate(tape.blocks, 1) if block.size == BYTES]
            born = [(tape.blocks[n - 1].operator, tape.events.index(n)) for n in own]
            first = next(start for start, step, _ in tape.windows if step == "first")

            assert [name for name, _ in born] == ["cublas", "cublas of the autograd thread"]
            assert born[0][1] < first < born[1][1]
            assert not any(tape.blocks[number - 1].region for number in own)
