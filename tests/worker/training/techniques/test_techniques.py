"""Selective checkpointing, offloading and compilation: the same training in less memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from compared_steps import CPU, deeper, phase_bytes, simulated, step_bytes, trained
from tiny_configs import CONFIGS
from tiny_models import tiny_job

from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.measuring.summary import attention_kernel
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import attention_implementation, build
from oomdoctor.worker.training.step import evaluation_step
from oomdoctor.worker.training.techniques import checkpointing

TECHNIQUES: dict[str, dict[str, Any]] = {
    "none": {},
    "full": {"activation_checkpointing": "full"},
    "every_n": {"activation_checkpointing": "every_n"},
    "attention": {"activation_checkpointing": "attention"},
    "mlp": {"activation_checkpointing": "mlp"},
    "offload": {"activation_checkpointing": "offload"},
    "optimizer": {"offload": "optimizer"},
    "activations": {"offload": "activations"},
}
KINDS = (
    "dense",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("conv1d", "encoder", "seq2seq", "moe")
    ),
)
LORA = {"method": "lora", "lora_rank": 4}


def short_job(kind: str, technique: str, **changes: Any) -> ProbeJob:
    """A job whose rows are long enough for activations to count, hardly timed."""
    limits = {"job_timing_limit_s": 0.0, "job_max_timed_steps": 1}
    return tiny_job(kind, sequence_length=64, **limits, **TECHNIQUES[technique], **changes)


@cache
def measured(kind: str, technique: str) -> Measurement:
    # The first step of a process also makes what the libraries keep for its life.
    if technique != "warm-up":
        measured("dense", "warm-up")
    return measure(short_job(kind, technique.replace("warm-up", "none")), PhaseFile(None))


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_loaded() -> None:
    """What libraries draw as they are imported would change the adapters of the first rung."""
    trained(tiny_job("conv1d", **LORA))


@cache
def trained_plainly(kind: str, lora: bool) -> tuple[list[float], list[torch.Tensor]]:
    return trained(tiny_job(kind, **(LORA if lora else {})))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("technique", [name for name in TECHNIQUES if name != "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_training_is_the_same(kind: str, technique: str, lora: bool) -> None:
    losses, weights = trained(tiny_job(kind, **TECHNIQUES[technique], **(LORA if lora else {})))
    expected_losses, expected_weights = trained_plainly(kind, lora)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert losses[-1] < losses[0]
    for weight, expected in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("kind", KINDS)
def test_simulated_is_measured_to_the_byte(kind: str, technique: str) -> None:
    real = step_bytes(measured(kind, technique))
    predicted = phase_bytes(simulated(short_job(kind, technique)))
    # Which rows an expert gets depends on values, and their indices are counted when recomputed.
    tolerance = 64 if kind == "moe" else 0
    looped = kind == "moe" and find_spec("transformers.integrations.moe") is None
    assert predicted == pytest.approx(real, abs=tolerance, rel=0.005 if looped else 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_fewer_checkpoints_never_need_less(kind: str) -> None:
    """What `analysis.dominance` relies on, phase by phase."""
    peaks = {}
    for name in TECHNIQUES:
        # ViT's layers have no module that is their MLP in transformers 4.
        with suppress(UnsupportedError) if (kind, name) == ("image", "mlp") else nullcontext():
            peaks[name] = step_bytes(measured(kind, name))
    for more, less in (
        ("none", "every_n"),
        ("every_n", "full"),
        ("full", "offload"),
        ("none", "attention"),
        ("none", "mlp"),
        ("none", "optimizer"),
    ):
        assert all(peaks[more][window] >= bytes_ for window, bytes_ in peaks.get(less, {}).items())


@pytest.mark.slow
def test_each_checkpoint_saves_its_share() -> None:
    def kept(**changes: Any) -> int:
        job = deeper(short_job("dense", "none"), num_hidden_layers=8)
        config = replace(job.config, **changes)
        result = measure(replace(job, config=config), PhaseFile(None))
        return result.first_step["forward"].peak_allocated_bytes

    def every(n: int) -> int:
        return kept(activation_checkpointing="every_n", checkpoint_every=n)

    none, full = kept(), kept(activation_checkpointing="full")
    assert every(1) == full
    assert every(2) == pytest.approx((none + full) / 2, rel=0.01)
    assert every(4) == pytest.approx(none - (none - full) / 4, rel=0.01)
    # An offloaded layer keeps nothing on the device, a checkpointed one its input.
    inputs = 8 * 2 * 64 * 64 * 4
    assert full - kept(activation_checkpointing="offload") == pytest.approx(inputs, rel=0.15)


def test_an_offloaded_optimizer_leaves_no_states_on_the_device() -> None:
    plain, offloaded = measured("dense", "none"), measured("dense", "optimizer")
    saved = (
        plain.steady["optimizer"].peak_allocated_bytes
        - offloaded.steady["optimizer"].peak_allocated_bytes
    )
    assert saved == pytest.approx(8 * plain.parameters, rel=0.01)
    assert offloaded.breakdown is not None
    assert offloaded.breakdown.optimizer_bytes == 0
    assert any("torchao" in note for note in offloaded.notes)
    assert any("one memory" in note for note in offloaded.notes)


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adafactor", "sgd"])
def test_other_optimizers_update_on_the_host_as_well(optimizer: str) -> None:
    plain, _ = trained(tiny_job("dense", optimizer=optimizer))
    offloaded, _ = trained(tiny_job("dense", optimizer=optimizer, offload="optimizer"))
    assert offloaded == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "depths"),
    [
        ("dense", {"num_hidden_layers": 11}),
        ("seq2seq", {"num_layers": 10, "num_decoder_layers": 11}),
    ],
)
@pytest.mark.parametrize("technique", ["every_n", "attention", "mlp", "offload"])
def test_a_few_layers_stand_for_all(kind: str, depths: dict[str, int], technique: str) -> None:
    job = deeper(short_job(kind, technique), **depths)
    deep, shallow = simulated(job, cuda=True), simulated(job, cuda=True, shallow=True)
    assert 0 < shallow.simulated_layers < shallow.layers
    # The norms of single gradients have four bytes each.
    assert phase_bytes(shallow) == pytest.approx(phase_bytes(deep), rel=2e-5)


def test_what_goes_to_the_host_has_no_predicted_time_and_a_note() -> None:
    half = {"autocast_dtype": "float16", "job_device_type": "cuda"}
    prediction = simulated(short_job("dense", "optimizer", **half), cuda=True)
    assert any("no time is predicted" in note for note in prediction.notes)
    plain = simulated(short_job("dense", "none", **half), cuda=True)
    assert phase_bytes(prediction)["steady", "optimizer"] < (
        phase_bytes(plain)["steady", "optimizer"] - 7 * measured("dense", "none").parameters
    )


def test_transformers_without_every_n_keeps_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    native = measured("dense", "every_n")
    monkeypatch.setattr(checkpointing, "_has_setting", lambda model, setting: False)
    wrapped = measure(short_job("dense", "every_n"), PhaseFile(None))
    assert step_bytes(wrapped) == step_bytes(native)
    assert any("layers[::2]" in note for note in wrapped.notes)


def test_a_wrapped_module_looks_and_evaluates_as_before() -> None:
    job = tiny_job("dense", activation_checkpointing="attention")
    plain, wrapped = build(tiny_job("dense"), CPU), build(job, CPU)
    one, other = (setup.model.model.layers[0].self_attn for setup in (plain, wrapped))
    assert inspect.signature(other.forward) == inspect.signature(one.forward)
    assert "self_attn.forward = functools.partial" in wrapped.notes[0]
    batch = micro_batches(wrapped, job.config, count=1)[0]
    assert evaluation_step(wrapped, batch) == evaluation_step(plain, batch)


def test_a_layer_without_an_mlp_module_is_unsupported() -> None:
    job = tiny_job("dense", activation_checkpointing="mlp")
    config = {
        "model_type": "opt",
        "hidden_size": 64,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 128,
        "word_embed_proj_dim": 64,
    }
    spec = replace(job.model, architecture="OPTForCausalLM", model_type="opt", config=config)
    with pytest.raises(UnsupportedError, match=r"no mlp module.*every_n"):
        build(replace(job, model=spec), CPU)


@pytest.mark.slow
def test_a_compiled_rung_is_compiled_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that runs a graph as it is in place of Inductor, which takes long."""
    plain = measured("dense", "none")
    compiled, nodes = torch.compile, []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        nodes.append(len(graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model, **_: compiled(model, backend=backend))
    torch._dynamo.reset()
    result = measure(short_job("dense", "none", compile=True), PhaseFile(None))
    assert sum(nodes) > 50  # the model, not only the line that tries the compiler
    assert step_bytes(result) == step_bytes(plain)
    assert "eager step" in result.notes[0]
    assert result.timing is not None
    # Tracing alone takes more than a second.
    assert result.timing.first_untraced_step_s < 0.5
    torch._dynamo.reset()


@pytest.mark.parametrize("on", [False, True])
def test_a_rung_in_tf32_is_measured_with_it(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """A card without TF32 has to run it too, so it is not the Trainer that turns it on."""
    monkeypatch.setattr(torch, "set_float32_matmul_precision", (said := []).append)
    setup = build(tiny_job("dense", tf32=on), CPU)
    assert said == (["high"] if on else [])
    assert setup.arguments.tf32 is None


def test_without_a_compiler_compilation_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("No working C++ compiler found\nmore")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(UnsupportedError, match=r"found\).*apt install g\+\+"):
        build(tiny_job("dense", compile=True), CPU)


def test_the_kernel_of_compiled_attention_is_not_guessed() -> None:
    job = replace(tiny_job("dense", compile=True), mode="simulate")
    setup = build(job, CPU)
    implementation = attention_implementation(setup)
    assert attention_kernel(implementation, set(), compiled=True) is None
    # though a note says "eager"
    assert attention_kernel(implementation, {"aten::bmm"}, compiled=True) == "sdpa: math"


def test_a_simulation_that_cannot_start_leaves_nothing_behind() -> None:
    with pytest.raises(UnsupportedError):
        simulated(tiny_job("dense", library="unsloth"))
    assert type(torch.empty(1)) is torch.Tensor


def test_a_compiled_rung_is_predicted_as_eager() -> None:
    job = short_job("dense", "none", compile=True)
    prediction = simulated(job)
    assert "predicted as eager" in prediction.notes[0]
    assert prediction.sizes[0].measurement.attention_kernel == "sdpa: flash (CPU)"
    assert phase_bytes(prediction) == phase_bytes(simulated(short_job("dense", "none")))


def test_experts_that_are_not_quantised_are_told() -> None:
    job = tiny_job("moe", method="qlora", quantization="nf4", weights_dtype="bfloat16")
    request = SimulationRequest((2,), ())
    (prediction,) = simulate(replace(job, mode="simulate", simulation=request), PhaseFile(None))
    fused = find_spec("transformers.integrations.moe") is not None
    assert any("does not quantize" in note for note in prediction.notes) == fused
