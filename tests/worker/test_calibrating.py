"""What `probe --calibrate` measures in its worker, on the CPU with few sizes."""

from __future__ import annotations

import pytest
import torch

from oomdoctor.analysis.speed import calibration_models
from oomdoctor.analysis.speed.calibrated import calibration_of, cpu_facts
from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.result import ProbeJob, Reply
from oomdoctor.worker.answer import answer
from oomdoctor.worker.calibrating import operators as module
from oomdoctor.worker.calibrating.operators import Memory, Operator, operators
from oomdoctor.worker.calibrating.stopwatch import Stopwatch
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile

FEW = {
    "elements": 1 << 20,
    "dtypes": ["float32", "bfloat16"],
    "products": [[1, 64, 128, 256], [4, 16, 16, 16]],
    "attention": [[1, 2, 32, 64]],
    "rows": [[32, 128]],
    "logits": [[16, 256]],
    "images": [[1, 8, 8, 3, 1], [1, 8, 8, 3, 8]],
    "parameters": [4096],
}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.TABLE["sizes"], "cpu", FEW)


def by_name() -> dict[str, list[Operator]]:
    """The operators by name."""
    named: dict[str, list[Operator]] = {}
    for operator in operators(Memory(CPU, FEW["elements"])):
        named.setdefault(operator.cost.name, []).append(operator)
    return named


def test_every_term_of_an_estimate_has_operators_of_both_directions() -> None:
    named = by_name()
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    for name in (
        "mm",
        "bmm",
        attention,
        f"{attention}_backward",
        "silu",
        "silu_backward",
        "gelu",
        "convolution",
        "convolution_backward",
    ):
        assert {each.cost.dtype for each in named[name]} == {"float32", "bfloat16"}, name
    for name in ("native_layer_norm_backward", "_log_softmax", "embedding_dense_backward"):
        assert name in named
    kinds = {each.cost.kind for same in named.values() for each in same}
    assert kinds == {"matmul", "attention", "conv", "elementwise", "irregular"}


def test_products_take_turns_with_other_weights() -> None:
    (product,) = [each for each in by_name()["mm"] if each.cost.dtype == "float32"]
    assert product.cost.shape == (1, 64, 128, 256)
    weights = [arguments[1] for arguments, _ in product.turns]
    assert len({weight.data_ptr() for weight in weights}) == module.TABLE["turns"] == 3


def test_a_call_takes_as_long_as_its_mean() -> None:
    watch = Stopwatch(CPU)
    (product,) = [each for each in by_name()["mm"] if each.cost.dtype == "float32"]
    with torch.no_grad():
        calls = watch.calls_for(product)
        assert 1 <= calls <= 200
        assert 0 < watch.seconds(product, calls) < 0.1
    one_thread = torch.get_num_threads() == 1
    assert watch.clock == ("cpu" if one_thread else "wall")


def test_the_worker_measures_operators_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"micro_batch_size": 1, "sequence_length": 8, "weights_dtype": "float32"}
    rows = [
        {**row, "cpu": tiny, "config": {**row["config"], "vocab_size": 64}}
        for row in calibration_models._MODELS
    ]
    monkeypatch.setattr(calibration_models, "_MODELS", rows)
    model, config = calibration_models.calibration_models("cpu")[0]
    job = ProbeJob("calibrate", "calibrate", model, config, "cpu", timing_limit_s=0.5)
    with clean_slate():
        reply = loads(Reply, dumps(answer(job, PhaseFile(None), None)))
    assert reply.status == "calibrated" and reply.times is not None, reply.failure
    times = reply.times
    assert times.rounds >= 3 and times.launch_s > 0
    assert all(kernel.seconds > 0 for kernel in times.kernels)
    assert [times.host_step.model, *(step.model for step in times.steps)] == [
        *("host", "llama", "gpt2")
    ]
    assert {op.cost.kind for op in times.host_step.operators} >= {"matmul", "elementwise"}
    factors = calibration_of(times, cpu_facts("a CPU", times))
    assert factors.kernels and factors.error is not None
