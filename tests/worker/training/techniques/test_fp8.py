"""FP8 training: built as by accelerate's recipes, simulated, and refused where it must."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from compared_steps import CPU, begun, deeper, phase_bytes, simulated
from tiny_models import tiny_job

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import FP8_CAPABILITY, card_lacks
from oomdoctor.system.catalogue import gpus
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.build import check_supported

FP8 = {"fp8": "torchao", "job_device_type": "cuda", "sequence_length": 64}
needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")


@needs_torchao
def test_a_few_layers_stand_for_all() -> None:
    job = deeper(tiny_job("dense", **FP8), num_hidden_layers=9)
    deep, shallow = simulated(job, cuda=True), simulated(job, cuda=True, shallow=True)
    assert 0 < shallow.simulated_layers < shallow.layers
    assert phase_bytes(shallow) == pytest.approx(phase_bytes(deep), rel=2e-5)


@needs_torchao
def test_weights_gradients_and_states_keep_their_types() -> None:
    job = {"sequence_length": 64, "job_device_type": "cuda"}
    plain = phase_bytes(simulated(tiny_job("dense", **job), cuda=True))
    fp8 = phase_bytes(simulated(tiny_job("dense", **FP8), cuda=True))
    assert fp8["steady", "optimizer"] == plain["steady", "optimizer"]


@needs_torchao
def test_the_first_and_the_last_linear_layer_stay() -> None:
    from oomdoctor.worker.training.build import build
    from oomdoctor.worker.training.techniques.replaced_layers import convert_to_torchao

    setup = begun(tiny_job("dense", job_mode="simulate"), build(tiny_job("dense"), CPU))
    convert_to_torchao(setup)
    model = setup.model
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    assert kinds["model.layers.0.self_attn.q_proj"] == kinds["lm_head"] == "Linear"
    assert kinds["model.layers.1.mlp.up_proj"] == "Float8Linear"
    assert any("no time is predicted" in note for note in setup.notes)


def test_a_card_without_fp8_is_told_apart() -> None:
    """The threshold is the one by which the catalogue has rates of FP8."""
    config = TrainConfig(fp8="torchao")
    for gpu in gpus():
        if gpu.vendor == "NVIDIA" and gpu.compute_capability:
            runs = card_lacks(config, gpu.compute_capability) is None
            assert runs or gpu.fp8_flops is None, gpu.name
    assert card_lacks(config, None) is None
    assert card_lacks(TrainConfig(), "6.1") is None
    assert FP8_CAPABILITY == (8, 9)


@pytest.mark.parametrize(
    ("fp8", "device", "told"),
    [("torchao", "cpu", "need a GPU"), ("transformer_engine", "cuda", "use fp8 = torchao")],
)
def test_what_cannot_run_says_why(fp8: Any, device: str, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        check_supported(TrainConfig(fp8=fp8, micro_batch_size=1), device, simulated=True)


def test_transformer_engine_takes_the_place_of_linear_layers_and_norms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By accelerate's own functions, with layers that stand in for those of the engine."""
    import torch
    from accelerate.utils import transformer_engine as by_accelerate

    class Linear(torch.nn.Linear):
        def __init__(self, inputs: int, outputs: int, bias: bool, params_dtype: Any) -> None:
            super().__init__(inputs, outputs, bias, dtype=params_dtype)

    held: list[int] = []

    @contextmanager
    def autocast(enabled: bool, fp8_recipe: str) -> Iterator[None]:
        held.append(enabled)
        yield
        held.append(fp8_recipe == "delayed")

    class Recipe:
        def to_kwargs(self) -> dict[str, Any]:
            return {}

    own = ModuleType("transformer_engine.pytorch")
    own.Linear, own.LayerNorm, own.fp8_autocast = Linear, torch.nn.LayerNorm, autocast  # type: ignore[attr-defined]
    recipes = ModuleType("transformer_engine.common.recipe")
    recipes.DelayedScaling = lambda: "delayed"  # type: ignore[attr-defined]
    checks = ModuleType("transformer_engine.pytorch.fp8")
    checks.check_mxfp8_support = lambda: (False, "")  # type: ignore[attr-defined]
    parents = {
        name: ModuleType(name) for name in ("transformer_engine", "transformer_engine.common")
    }
    parents["transformer_engine"].pytorch = own  # type: ignore[attr-defined]
    parents["transformer_engine.common"].recipe = recipes  # type: ignore[attr-defined]
    for module in (own, recipes, checks, *parents.values()):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("is_transformer_engine_available", "is_fp8_available"):  # the latter up to 1.3
        monkeypatch.setattr(by_accelerate, name, lambda: True, raising=False)
    monkeypatch.setattr("accelerate.utils.TERecipeKwargs", Recipe, raising=False)

    from oomdoctor.worker.training.build import build
    from oomdoctor.worker.training.techniques import replaced_layers

    setup = begun(tiny_job("dense"), build(tiny_job("dense"), CPU))
    model = setup.model
    before = sum(parameter.numel() for parameter in model.parameters())
    replaced_layers.convert_to_transformer_engine(setup)
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert linear and all(type(module) is Linear for module in linear)
    assert sum(parameter.numel() for parameter in model.parameters()) == before
    assert any("TERecipeKwargs" in note for note in setup.notes)
    assert setup.around is not None
    wrapped = setup.around(model)
    wrapped.train()
    wrapped(input_ids=torch.ones(1, 4, dtype=torch.long))
    assert held == [True, True]
