"""Where the tokens of a mixture go, measured on the CPU and simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from compared_steps import CPU, differences, phase_bytes, simulated
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.techniques.routing import to_the_same_experts

pytestmark = pytest.mark.slow
pytest.importorskip("transformers.integrations.moe")  # whose experts run in a loop if asked to


def _looped(**changes: Any) -> ProbeJob:
    """A mixture whose experts take their tokens one after the other."""
    job = tiny_job("moe", **changes)
    config = {**job.model.config, "experts_implementation": "eager", "intermediate_size": 512}
    return replace(job, model=replace(job.model, config=config))


@pytest.mark.parametrize(
    "rung", [{}, {"method": "lora"}, {"activation_checkpointing": "full"}], ids=str
)
def test_the_worst_routing_needs_what_was_measured(rung: dict[str, Any]) -> None:
    assert differences(_looped(routing="worst", **rung)) == {}


def test_even_routing_trains_all_experts() -> None:
    peaks = [phase_bytes(simulated(_looped(routing=routing))) for routing in ("even", "worst")]
    even, worst = (peak["steady", "optimizer"] for peak in peaks)
    assert even == worst  # the states of all experts


def test_routers_choose_the_first_experts() -> None:
    setup = build(tiny_job("moe", routing="worst"), CPU)
    scores = torch.rand(5, 4, requires_grad=True)  # of 4 experts
    with to_the_same_experts(setup):
        values, chosen = torch.topk(scores, 2, dim=-1)
        values.sum().backward()
        assert chosen.tolist() == [[0, 1]] * 5
        assert scores.argmax(-1).tolist() == [0] * 5
        assert scores.t().topk(k=2, dim=0).indices.tolist() == [[0] * 5, [1] * 5]
        assert torch.topk(torch.tensor([1.0, 3.0, 2.0]), 1).indices.tolist() == [1]
    assert scores.grad is not None and scores.grad[:, 2:].count_nonzero() == 0


def test_a_dense_model_has_no_routes() -> None:
    with pytest.raises(UnsupportedError, match="has no experts to route to"):
        build(tiny_job("dense", routing="worst"), CPU)
