"""GaLore and APOLLO: optimizers whose states are those of projected gradients."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from compared_steps import CPU, deeper, differences, phase_bytes, simulated, trained
from tiny_models import tiny_job
from torch._subclasses.fake_tensor import FakeTensorMode

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.worker.simulating.cuda.kernel_rules import steps_of
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import OTHERS, Result
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.optimizers import state_tensors

needs_galore = pytest.mark.skipif(find_spec("galore_torch") is None, reason="needs galore-torch")
needs_apollo = pytest.mark.skipif(find_spec("apollo_torch") is None, reason="needs apollo-torch")
ROW = {"optimizer_rank": 8, "sequence_length": 64}
ONE_BATCH = {"micro_batch_size": 2, "effective_batch_size": 2}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("galore_adamw", marks=needs_galore),
        pytest.param("galore_adamw_layerwise", marks=needs_galore),
        pytest.param("apollo_adamw", marks=needs_apollo),
        pytest.param("apollo_adamw_layerwise", marks=needs_apollo),
    ],
)
def test_it_learns_with_the_states_of_its_rank(name: str) -> None:
    layerwise = name.endswith("layerwise")
    rung = {**ROW, **(ONE_BATCH if layerwise else {})}
    losses, _ = trained(tiny_job("dense", optimizer=name, **rung), each=1 if layerwise else 2)
    assert losses[-1] < losses[0]
    setup = build(tiny_job("dense", optimizer=name, **rung), CPU)
    states = {}
    for rank in (4, 8):
        setup = build(tiny_job("dense", optimizer=name, **rung | {"optimizer_rank": rank}), CPU)
        for parameter in setup.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        plain = setup.trainer.optimizer.optimizer
        for own in (getattr(plain, "optimizer_dict", None) or {0: plain}).values():
            own.step()
        states[rank] = sum(t.numel() * t.element_size() for t in state_tensors(plain))
    # Two moments and a projection for each linear layer; twice the rank makes all twice as large.
    linear = [m.weight for m in setup.model.modules() if isinstance(m, torch.nn.Linear)]
    each = sum(4 * (2 * max(w.shape) + min(w.shape)) for w in linear)
    assert states[8] - states[4] == pytest.approx(4 * each, rel=0.01)


@needs_apollo
def test_apollo_is_simulated_but_for_a_copy_that_later_steps_make() -> None:
    job = tiny_job("dense", optimizer="apollo_adamw", **ROW)
    found = differences(job)
    largest = max(p.numel() * p.element_size() for p in build(job, CPU).model.parameters())
    assert set(found) <= {("steady", "optimizer")}
    assert all(-largest <= size <= 0 for size in found.values()), found


@needs_apollo
def test_a_few_layers_stand_for_all() -> None:
    job = deeper(tiny_job("dense", optimizer="apollo_adamw", **ROW), num_hidden_layers=9)
    deep, shallow = simulated(job, cuda=True), simulated(job, cuda=True, shallow=True)
    assert phase_bytes(shallow) == pytest.approx(phase_bytes(deep), rel=2e-5)
    assert any("one more copy" in note for note in shallow.notes)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("galore_adamw", marks=needs_galore),
        pytest.param("galore_adamw_layerwise", marks=needs_galore),
        pytest.param("apollo_adamw_layerwise", marks=needs_apollo),
    ],
)
def test_a_simulated_step_is_that_of_the_cpu(name: str) -> None:
    layerwise = name.endswith("layerwise")
    job = tiny_job("dense", optimizer=name, **ROW, **(ONE_BATCH if layerwise else {}))

    found = differences(job)

    # A layerwise one leaves nothing to do, so that only the number of a loss differs.
    assert set(found) <= ({("steady", "optimizer")} if layerwise else set())
    assert all(abs(size) <= 4 for size in found.values()), found


@needs_galore
def test_cusolver_gets_a_copy_and_the_rest_is_said() -> None:
    job = replace(tiny_job("dense", optimizer="galore_adamw", **ROW), device_type="cuda")

    prediction = simulated(job, cuda=True)

    assert any("cuSOLVER" in note for note in prediction.notes)
    with FakeTensorMode():
        matrix = torch.empty(64, 16)
        svd = torch.ops.aten._linalg_svd.default
        steps = steps_of(OperatorCall(svd, (matrix,), {}, svd(matrix)), (8, 0))
    assert steps == (Result(OTHERS), 4, 4 * matrix.numel())


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"optimizer": "galore_adamw", "optimizer_rank": 0}, "optimizer_rank"),
        ({"optimizer": "galore_adamw", "sharding": "ddp", "world_size": 2}, "optimizer"),
        ({"optimizer": "galore_adamw_layerwise", "micro_batch_size": 2}, "optimizer"),
        ({"optimizer": "apollo_adamw", "optimizer_in_backward": True}, "optimizer_in_backward"),
    ],
    ids=str,
)
def test_contradictions(changes: dict[str, Any], key: str) -> None:
    assert [name for name, _ in config_faults(TrainConfig(**changes))] == [key]
