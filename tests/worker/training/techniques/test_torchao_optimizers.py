"""The low-bit optimizers of torchao: states of one byte or half a byte, simulated and measured."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from compared_steps import CPU, deeper, differences, phase_bytes, simulated
from tiny_models import tiny_job
from weekly_rows import weekly

from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.optimizers import state_tensors
from oomdoctor.worker.training.techniques import compilation

pytestmark = pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
NAMES = ("adamw_torch_8bit", "adamw_torch_4bit")
ROW = {"sequence_length": 64}


@pytest.fixture(autouse=True)
def _no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled here, so the compiler need not be tried."""
    monkeypatch.setattr(compilation, "_try_compiler", lambda device: None)


@pytest.mark.parametrize("name", [NAMES[0], weekly(NAMES[1])])
def test_simulated_is_measured_to_the_byte(name: str) -> None:
    found = differences(tiny_job("dense", optimizer=name, **ROW))
    assert all(abs(size) <= 4 for size in found.values()), found  # a loss of the report


@pytest.mark.parametrize("rung", [{}, {"activation_checkpointing": "full"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_few_layers_stand_for_all(name: str, rung: dict[str, Any]) -> None:
    job = deeper(tiny_job("dense", optimizer=name, **ROW, **rung), num_hidden_layers=9)
    deep, shallow = simulated(job, cuda=True), simulated(job, cuda=True, shallow=True)
    assert 0 < shallow.simulated_layers < shallow.layers
    assert phase_bytes(shallow) == pytest.approx(phase_bytes(deep), rel=2e-5)


@pytest.mark.parametrize(("name", "each"), [("adamw_torch_8bit", 1.0), ("adamw_torch_4bit", 0.5)])
def test_states_have_the_bytes_that_the_row_says(name: str, each: float) -> None:
    """Two states of `each` byte an entry, 4 bytes for a block of them, and the tables."""
    job = tiny_job("dense", optimizer=name, **ROW)
    step = phase_bytes(simulated(job, cuda=True))
    plain = phase_bytes(simulated(tiny_job("dense", optimizer="sgd", **ROW), cuda=True))
    setup = build(tiny_job("dense", optimizer=name, **ROW), CPU)
    sizes = [p.numel() for p in setup.model.parameters()]
    block = setup.trainer.optimizer.optimizer.block_size  # transformers since 5 says it
    table = 4 * (256 if each == 1.0 else 16)
    states = sum(2 * (each * n + 4 * n // block + table) if n >= 4096 else 2 * 4 * n for n in sizes)
    found = step["steady", "forward"] - plain["steady", "forward"]
    assert found == pytest.approx(states, rel=0.001)


def test_the_states_that_a_step_makes_are_found() -> None:
    import torch

    setup = build(tiny_job("dense", optimizer="adamw_torch_4bit", **ROW), CPU)
    for parameter in setup.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with torch.compiler.set_stance("force_eager"):
        setup.trainer.optimizer.step()
    kinds = {tensor.dtype for tensor in state_tensors(setup.trainer.optimizer)}
    assert torch.uint8 in kinds
