"""Liger's package on a simulated device: what it allocates, and that nothing of it stays behind."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from tiny_models import tiny_job

from oomdoctor.analysis.simulator.card import card_of
from oomdoctor.analysis.simulator.recorded import Recorded
from oomdoctor.analysis.simulator.tape import Tape
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.categories import GRADIENTS, LOGITS
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import Prediction, SimulationRequest, Target
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.cuda.liger import no_driver_needed
from oomdoctor.worker.simulating.simulate import simulate, simulated_rung
from oomdoctor.worker.training import build
from oomdoctor.worker.training.build import check_supported
from oomdoctor.worker.training.inspection import inspect_model

_LIGER = importlib.util.find_spec("liger_kernel") and importlib.util.find_spec("triton")
_RECENT = bool(_LIGER) and version("liger-kernel").startswith("0.8.")
needs_liger = pytest.mark.skipif(not _LIGER, reason="liger-kernel and triton are not installed")
needs_recent = pytest.mark.skipif(not _RECENT, reason="counts what liger-kernel 0.8 does")
_HIDDEN, _VOCABULARY, _TOKENS = 64, 1000, 2 * 32  # of tiny models
_WEIGHT = 2 * _VOCABULARY * _HIDDEN  # bytes of the head in bfloat16
# ops/fused_linear_cross_entropy.py: 16 = ceil(vocabulary / hidden) chunks of 4 tokens, whose logits
# are about as large as the input of the head.
_CHUNKS = 16
_CHUNK = 2 * _TOKENS // _CHUNKS * _VOCABULARY


def liger_job(kind: str = "dense", layers: int = 2, **changes: Any) -> ProbeJob:
    rung = {"loss": "liger", "weights_dtype": "bfloat16", **changes}
    job = replace(tiny_job(kind, **rung), mode="simulate", device_type="cuda")
    config = {**job.model.config, "num_hidden_layers": layers, "vocab_size": _VOCABULARY}
    request = SimulationRequest((1, 2, 4), (), as_cuda=True)
    return replace(job, model=replace(job.model, config=config), simulation=request)


def recorded(job: ProbeJob) -> Recorded:
    with clean_slate(), simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        return recorder.record(2)


def sizes(tape: Tape, operator: str, module: str = "") -> list[int]:
    """Bytes of all blocks that an operator made, or of those it made in one module."""
    made = (block for block in tape.blocks if block.operator == operator)
    return [block.size for block in made if module in ("", block.module)]


def peaks(prediction: Prediction) -> list[tuple[int, int | None]]:
    found = [size.measurement for size in prediction.sizes]
    return [(each.peak_allocated_bytes, each.peak_reserved_bytes) for each in found]


@pytest.mark.parametrize("asks", [True, False])
def test_a_kernel_is_defined_without_a_driver(monkeypatch: pytest.MonkeyPatch, asks: bool) -> None:
    class Newer:
        active = property()  # nobody asks it before a launch

    older = SimpleNamespace(active=None)  # as in Triton 3.2
    driver: Any = older if asks else Newer()
    module = SimpleNamespace(driver=driver)
    monkeypatch.setitem(sys.modules, "triton.runtime.driver", cast(ModuleType, module))

    with no_driver_needed():
        if asks:
            assert driver.active.get_benchmarker() is None
    assert older.active is None


@needs_recent
def test_no_logits_are_made_and_the_head_takes_chunks() -> None:
    plain, liger = recorded(liger_job(loss="default")).tape, recorded(liger_job()).tape
    assert any(block.category == LOGITS for block in plain.blocks)
    assert not any(block.category == LOGITS for block in liger.blocks)
    assert sizes(liger, "aten::empty").count(_CHUNK) == 1  # one buffer for all chunks


@needs_liger
def test_the_gradient_of_the_head_is_made_in_the_forward_pass_and_not_copied() -> None:
    tape = recorded(liger_job()).tape
    (made,) = (
        number
        for number, block in enumerate(tape.blocks)
        if block.operator == "aten::zeros_like" and block.category == GRADIENTS
    )
    assert tape.blocks[made].size == _WEIGHT
    born = tape.events.index(made + 1)
    assert [phase for start, _, phase in tape.windows if start <= born][-1] == "forward"
    frozen = recorded(liger_job(method="lora")).tape
    assert not any(block.category == GRADIENTS for block in frozen.blocks if block.size == _WEIGHT)


@needs_recent
def test_cards_before_ampere_sum_the_gradient_of_the_head_in_copies() -> None:
    names = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla T4")
    targets = tuple(Target(name, 80 << 30, 79 << 30, 0, find_gpu(name, None)) for name in names)
    job = liger_job(attention="eager")  # which is the same for every card
    job = replace(job, simulation=SimulationRequest((2,), targets))
    ampere, hopper, turing = map(card_of, targets)
    with clean_slate(), simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        modern, old = recorder.record(2, ampere), recorder.record(2, turing)
    assert hopper in modern.alike
    assert turing not in modern.alike
    assert old.alike == {turing}
    assert 2 * _WEIGHT in sizes(old.tape, "aten::_to_copy")
    assert 2 * _WEIGHT not in sizes(modern.tape, "aten::_to_copy")


@needs_recent
def test_weights_in_fp32_under_autocast_give_chunks_in_16_bits() -> None:
    job = liger_job(weights_dtype="float32", autocast_dtype="bfloat16")
    chunks = [size for size in sizes(recorded(job).tape, "aten::mm") if size == _CHUNK]
    assert len(chunks) == _CHUNKS


@needs_recent
def test_every_kernel_has_a_cost() -> None:
    launches = [each for each in recorded(liger_job()).costs if each.cost.name == "triton_launch"]
    # In each of 2 layers two norms, a rotation and an MLP, one norm more, forward and backward; a
    # cross-entropy a chunk; two gradients multiplied by that of the loss.
    assert len(launches) == 2 * (2 * 4 + 1) + _CHUNKS + 2
    chunk = _CHUNK + _TOKENS // _CHUNKS * (8 + 4)  # logits, labels and losses, read and written
    logits = [each.cost for each in launches if each.cost.bytes_moved == 2 * chunk]
    assert len(logits) == _CHUNKS
    assert all(cost.dtype == "bfloat16" and not cost.flops for cost in logits)


@needs_liger
@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        ("dense", {}),
        ("dense", {"method": "lora", "activation_checkpointing": "full"}),
        ("gqa-tied", {"activation_checkpointing": "mlp", "autocast_dtype": "bfloat16"}),
        ("dense", {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}),
    ],
)
def test_few_layers_tell_what_many_need(kind: str, rung: dict[str, Any]) -> None:
    job = liger_job(kind, layers=9, **rung)
    stacks = inspect_model(replace(job, device_type="cpu")).stacks
    assert job.simulation is not None
    shallow = replace(job, simulation=replace(job.simulation, stacks=stacks))
    with clean_slate():
        (extended,) = simulate(shallow, PhaseFile(None))
    with clean_slate():
        (whole,) = simulate(job, PhaseFile(None))
    assert extended.simulated_layers < extended.layers
    for (allocated, _), (expected, _) in zip(peaks(extended), peaks(whole), strict=True):
        assert allocated == pytest.approx(expected, rel=0.001)


@needs_liger
@pytest.mark.parametrize("kind", ["dense", pytest.param("moe", marks=needs_recent)])
def test_a_rung_leaves_nothing_behind_for_the_next(kind: str) -> None:
    def simulated(loss: str) -> list[tuple[int, int | None]]:
        with clean_slate():
            (prediction,) = simulate(liger_job(kind, loss=loss), PhaseFile(None))
        return peaks(prediction)

    before, between, after = simulated("default"), simulated("liger"), simulated("default")
    assert before == after
    assert between != before
    assert between == simulated("liger")


@needs_liger
def test_what_liger_exchanges_is_put_back() -> None:
    from torch.nn import functional
    from transformers.models.llama import modeling_llama
    from triton.runtime.jit import KernelInterface

    owners = (modeling_llama, modeling_llama.LlamaForCausalLM, functional, KernelInterface)
    before = [dict(vars(owner)) for owner in owners]
    assert modeling_llama.LlamaRMSNorm.__module__ == modeling_llama.__name__
    with clean_slate(), simulated_rung(liger_job(), PhaseFile(None), shallow=False):
        assert modeling_llama.LlamaRMSNorm.__module__.startswith("liger_kernel")
    assert [dict(vars(owner)) for owner in owners] == before


@needs_liger
def test_checkpointing_of_the_mlp_is_not_overwritten() -> None:
    kept = recorded(liger_job()).tape
    recomputed = recorded(liger_job(activation_checkpointing="mlp")).tape
    inner = "model.layers.0.mlp.gate_proj"
    assert len(sizes(recomputed, "aten::mm", inner)) > len(sizes(kept, "aten::mm", inner))


@needs_liger
def test_a_model_that_liger_does_not_know_says_so() -> None:
    with (
        clean_slate(),
        simulated_rung(liger_job("conv1d"), PhaseFile(None), shallow=False) as recorder,
    ):
        assert "Liger has no kernels for gpt2, so none are used" in recorder.setup.notes


@pytest.mark.parametrize("missing", ["liger_kernel", "triton"])
@pytest.mark.parametrize("simulated", [True, False])
def test_without_its_packages_liger_is_unsupported(
    missing: str, simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "installed", lambda module: module != missing)
    config = replace(TrainConfig(), loss="liger")
    with pytest.raises(UnsupportedError, match="pip install liger-kernel"):
        check_supported(config, "cuda", simulated=simulated)


def test_a_rung_with_liger_ends_as_unsupported_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    monkeypatch.setattr(build, "installed", lambda module: module != "liger_kernel")
    with pytest.raises(UnsupportedError, match="pip install liger-kernel"), clean_slate():
        simulate(liger_job(), PhaseFile(None))


def test_liger_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "installed", lambda module: True)
    with pytest.raises(UnsupportedError, match="need a GPU"):
        check_supported(replace(TrainConfig(), loss="liger"), "cpu", simulated=True)
