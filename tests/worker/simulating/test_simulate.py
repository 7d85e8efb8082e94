"""Simulated steps against measured ones, and shallow models against deep ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_steps import differences, quick, simulated_peaks, simulation_job
from tiny_image_configs import WITH_IMAGES
from tiny_models import tiny_job
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.analysis.simulator.playback import RecordedRung
from oomdoctor.analysis.simulator.recorded import Recorded
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.facts.categories import CATEGORIES
from oomdoctor.records.job.costs import TF32
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import DevicePrediction, SimulationRequest, Target
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.recipes.recipes import load_recipe
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.simulating.recorder import Recorder
from oomdoctor.worker.simulating.shallow import is_shallow, shallow_config
from oomdoctor.worker.simulating.simulate import simulate, simulated_rung
from oomdoctor.worker.training.inspection import inspect_model
from oomdoctor.worker.training.layers import stacks_of
from oomdoctor.worker.training.objectives.images import is_in_tower

MIB = 1024**2
_LADDER = load_recipe("default", sequence_length=32, effective_batch_size=4, micro_batch_size=2)
_QLORA = {"method": "qlora", "quantization": "nf4", "weights_dtype": "bfloat16"}
# Where a fake kernel gives another type or shape than the CPU's own: bytes of slack.
_SLACK = {
    ("encoder", "float32", "bfloat16"): 256,  # layer_norm's statistics of mixed types
    ("moe", "float32", "bfloat16"): 64,  # offsets of the grouped product
    ("moe", "bfloat16", "bfloat16"): 64,
}
_EVENLY = 0.005  # of a peak: experts in a loop get as many tokens as the router says


# The rungs of the inner loop; the others are slow tests.
_INNER = ("lora-r16+ckpt", "full-bf16+ckpt+adamw8bit")
# The rungs of the architectures other than dense. The rest of the ladder differs from these in the
# optimizer or the adapter, whose code does not depend on the architecture.
_OF_OTHERS = (
    "full-fp32-amp-bf16",
    "full-bf16",
    "full-bf16+ckpt",
    "lora-r16+ckpt",
    "qlora-nf4-r16+ckpt",
)
_OTHERS = ("gqa-tied", "moe", "encoder", "seq2seq", "conv1d")


def _slack(kind: str, config: TrainConfig, measured: int) -> float:
    if kind == "moe" and find_spec("transformers.integrations.moe") is None:
        return _EVENLY * measured
    return _SLACK.get((kind, config.weights_dtype, config.autocast_dtype), 0)


def _measurable(config: TrainConfig) -> bool:
    """Whether the CPU can run it with these libraries."""
    if config.optimizer.startswith("paged_") or config.loss != "default":
        return False
    if "8bit" in config.optimizer:
        return hasattr(torch.ops.bitsandbytes, "optimizer_update_8bit_blockwise")
    return config.quantization == "none" or _quantises_on_cpu()


def _quantises_on_cpu() -> bool:
    """What transformers 4 says itself; without Intel's extension of PyTorch it says no."""
    from transformers import integrations

    available = getattr(integrations, "validate_bnb_backend_availability", lambda: True)
    return bool(available())


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Libraries make a few tables at their first use, which later measurements do not see."""
    measure(quick(tiny_job("dense")), PhaseFile(None))
    if _quantises_on_cpu():
        measure(quick(tiny_job("dense", **_QLORA)), PhaseFile(None))


@pytest.mark.parametrize("on", [False, True])
def test_products_of_float32_are_in_tf32_if_the_rung_says_so(on: bool) -> None:
    job = simulation_job(tiny_job("dense", tf32=on))
    with simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        costs = [cost.cost for cost in recorder.record(2).costs]
    assert {cost.dtype for cost in costs if cost.kind == "matmul"} == {TF32 if on else "float32"}
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_tf32_changes_times_and_no_memory() -> None:
    card = find_gpu("A100-SXM4-80GB")
    assert card is not None
    target = Target("a100", card.memory_bytes, card.memory_bytes, 0, card)
    predicted = {}
    for on in (False, True):
        job = simulation_job(tiny_job("dense", tf32=on))
        assert job.simulation is not None
        request = replace(job.simulation, targets=(target,), detail=True)
        (predicted[on],) = simulate(replace(job, simulation=request), PhaseFile(None))
    (plain,), (short,) = (predicted[on].sizes for on in (False, True))
    assert (short.phases, short.measurement) == (plain.phases, plain.measurement)
    (slow,), (fast,) = plain.devices, short.devices
    assert fast.peak_reserved_bytes == slow.peak_reserved_bytes
    assert slow.timing is not None and fast.timing is not None
    assert fast.timing.optimizer_step_s == slow.timing.optimizer_step_s


@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        pytest.param(
            kind,
            rung,
            id=f"{kind}-{rung.label}",
            marks=[] if kind == "dense" and rung.label in _INNER else [pytest.mark.slow],
        )
        for kind in ("dense", *_OTHERS)
        for rung in _LADDER.rungs
        if kind == "dense" or rung.label in _OF_OTHERS
    ],
)
def test_predicted_and_measured_tensor_bytes_agree_phase_by_phase(kind: str, rung: Rung) -> None:
    config = rung.config
    if not _measurable(config):
        pytest.skip("the CPU cannot run this configuration with these libraries")
    job = quick(replace(tiny_job(kind), config=config))
    with clean_slate():  # transformers 4 keeps a mixed precision for the next rung
        measured = measure(job, PhaseFile(None))
    with clean_slate():
        predicted = simulated_peaks(job, as_cuda=False)
    for step, phases in (("first", measured.first_step), ("steady", measured.steady)):
        for phase, memory in phases.items():
            difference = predicted[step, phase] - memory.peak_allocated_bytes
            slack = _slack(kind, config, memory.peak_allocated_bytes)
            assert abs(difference) <= slack, (step, phase, difference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        ("dense", {}),
        ("dense", {"optimizer": "adamw_torch", "activation_checkpointing": "full"}),
        ("gqa-tied", {"method": "lora", "autocast_dtype": "bfloat16", "weights_dtype": "bfloat16"}),
        ("dense", _QLORA),
        ("dense", {"optimizer": "adamw_bnb_8bit"}),
        ("moe", {"weights_dtype": "bfloat16"}),
        ("conv1d", {"optimizer": "adafactor"}),
        ("encoder", {"attention": "eager"}),
        ("seq2seq", {"optimizer": "adamw_torch"}),
    ],
)
def test_few_layers_tell_what_many_need(kind: str, rung: dict[str, Any]) -> None:
    job = deep(tiny_job(kind, **rung), 7)
    stacks = inspect_model(job).stacks
    assert all(stack.units > 4 for stack in stacks)
    (extended,) = simulate(simulation_job(job, (1, 2, 4), stacks=stacks), PhaseFile(None))
    (whole,) = simulate(simulation_job(job, (1, 2, 4)), PhaseFile(None))
    assert extended.simulated_layers < extended.layers
    for one, other in zip(extended.sizes, whole.sizes, strict=True):
        assert one.measurement.trainable_parameters == other.measurement.trainable_parameters
        for phase, memory in other.measurement.phases.items():
            found = one.measurement.phases[phase]
            assert found == memory, (phase, one.micro_batch_size)


@pytest.mark.parametrize("kind", WITH_IMAGES)
@pytest.mark.parametrize(
    "rung",
    [{}, {"vision": "frozen", "method": "lora"}, {"activation_checkpointing": "full"}],
    ids=["trained", "frozen", "checkpointing"],
)
def test_few_layers_of_an_encoder_of_images_tell_what_many_need(
    kind: str, rung: dict[str, Any]
) -> None:
    """In Qwen2.5-VL, most layers attend to windows and each eighth to the whole image."""
    job = deep_with_images(tiny_job(kind, **rung))
    stacks = inspect_model(job).stacks
    assert simulated_peaks(job, stacks=stacks) == simulated_peaks(job)
    with simulated_rung(simulation_job(job, stacks=stacks), PhaseFile(None), shallow=True) as built:
        layers = sum(map(len, encoder_layers(built.setup.model)))
    assert layers == (10 if kind == "qwen2_5_vl" else 4)


def test_few_layers_of_an_encoder_have_those_whose_outputs_are_used() -> None:
    """In Qwen3-VL, the decoder adds the outputs of a few layers to its own (DeepStack)."""
    pytest.importorskip("transformers", minversion="5.0")
    job = tiny_job("qwen3_vl", sequence_length=64, image_size=32)
    config = dict(job.model.config)
    config["vision_config"] = config["vision_config"] | {
        "depth": 12,
        "deepstack_visual_indexes": [5, 11],
    }
    job = replace(job, model=replace(job.model, config=config))
    assert simulated_peaks(job, stacks=inspect_model(job).stacks) == simulated_peaks(job)


def test_few_layers_keep_the_numbers_of_those_that_differ() -> None:
    """Llama 3.2 Vision numbers layers of both parts; its code fails on a number without a layer."""
    from transformers import MllamaConfig, MllamaForConditionalGeneration

    sizes = {"hidden_size": 16, "intermediate_size": 32}
    vision = {**sizes, "attention_heads": 2, "num_hidden_layers": 16, "num_global_layers": 2}
    text = {**sizes, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 40}
    text["rope_scaling"] = {"rope_type": "default"}  # transformers 4 has no default
    config = MllamaConfig(
        vision_config=vision
        | {"intermediate_layers_indices": [1, 13], "vision_output_dim": 48, "image_size": 56},
        text_config=text
        | {"vocab_size": 64, "pad_token_id": 0, "cross_attention_layers": list(range(3, 40, 5))},
    )
    with torch.device("meta"):
        stacks = stacks_of(MllamaForConditionalGeneration(config), config)
        shallow = shallow_config(config, stacks)
        assert shallow is not None
        assert is_shallow(MllamaForConditionalGeneration(shallow), shallow, stacks)
    few = shallow.vision_config
    assert max(few.intermediate_layers_indices) < few.num_hidden_layers < 16
    assert len(few.intermediate_layers_indices) == 2
    assert shallow.text_config.cross_attention_layers == [3, 8, 13, 18]
    assert shallow.text_config.num_hidden_layers == 20


def encoder_layers(model: torch.nn.Module) -> Iterator[torch.nn.ModuleList]:
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and is_in_tower(path):
            yield module


def deep_with_images(job: ProbeJob) -> ProbeJob:
    """The model with many layers in both parts."""
    config = dict(job.model.config)
    text = config.get("text_config", config) | {"num_hidden_layers": 7}
    config = config | ({"text_config": text} if "text_config" in config else text)
    many = {"num_hidden_layers": 9}
    if job.model.model_type == "qwen2_5_vl":
        many = {"depth": 16, "fullatt_block_indexes": [7, 15]}
        rung = replace(job.config, sequence_length=96, image_size=64)
        job = replace(job, config=rung)
    config["vision_config"] = config["vision_config"] | many
    return replace(job, model=replace(job.model, config=config))


@pytest.mark.parametrize("kind", ["llava", "smolvlm"])
def test_rows_of_several_images_are_simulated_as_they_are_measured(kind: str) -> None:
    """SmolVLM counts the images of each row and reads the numbers back."""
    job = quick(tiny_job(kind, images=2, sequence_length=64))
    measured, predicted = measure(job, PhaseFile(None)), simulated_peaks(job, as_cuda=False)
    for phase, memory in measured.steady.items():
        assert predicted["steady", phase] == memory.peak_allocated_bytes, phase


def test_windows_of_images_are_not_recorded_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row adds windows, so no size lies on a line through others.

    An encoder that masks all windows at once adds none: its mask grows with the square of the rows,
    which a size far away shows.
    """
    record, sizes = Recorder.record, []

    def noted(self: Recorder, size: int, card: Card | None = None) -> Recorded:
        sizes.append(size)
        return record(self, size, card)

    monkeypatch.setattr(Recorder, "record", noted)
    job = deep_with_images(tiny_job("qwen2_5_vl"))
    simulate(simulation_job(job, (1, 2, 4), stacks=inspect_model(job).stacks), PhaseFile(None))
    masks_all = hasattr(modeling_qwen2_5_vl, "Qwen2_5_VLVisionSdpaAttention")  # transformers 4.51
    assert sizes == ([1, 2, 61, 4] if masks_all else [1, 2, 4])


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has none")
def test_experts_that_are_not_trained_keep_no_inputs() -> None:
    """Also in 32 bits, where a fallback stands for torch's grouped product."""
    job = tiny_job("moe", method="lora", lora_targets="attention", autocast_dtype="bfloat16")
    assert set(differences(job).values()) == {0}


def test_clipping_takes_as_much_for_few_layers_as_for_many() -> None:
    job = deep(tiny_job("dense"), 7)
    found = []
    for stacks in (inspect_model(job).stacks, ()):
        asked = simulation_job(job, stacks=stacks)
        with simulated_rung(asked, PhaseFile(None), shallow=bool(stacks)) as recorder:
            blocks = recorder.record(2).tape.blocks
        found.append(
            [
                (block.operator, block.size)
                for block in blocks
                if block.operator == "aten::stack"
                or (block.operator == "aten::_foreach_norm" and block.size > 4)
            ]
        )
    few, many = found
    assert few == many
    assert {operator for operator, _ in few} == {"aten::stack", "aten::_foreach_norm"}


def test_a_model_that_picks_rows_by_their_labels_is_measured_to_the_byte() -> None:
    """DeBERTa's classifier asks where labels are not negative."""
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
    encoder = tiny_job("encoder").model.config
    job = tiny_job("classifier", attention="eager")
    config = {**encoder, **dropout, **relative, "model_type": "deberta-v2"}
    name = "DebertaV2ForSequenceClassification"
    spec = replace(job.model, architecture=name, model_type="deberta-v2", config=config)
    job = quick(replace(job, model=spec))
    measure(job, PhaseFile(None))  # makes what its code keeps for the life of the process
    measured, predicted = measure(job, PhaseFile(None)), simulated_peaks(job, as_cuda=False)
    for step, phases in (("first", measured.first_step), ("steady", measured.steady)):
        for phase, memory in phases.items():
            assert predicted[step, phase] == memory.peak_allocated_bytes, (step, phase)


def deep(job: ProbeJob, layers: int) -> ProbeJob:
    names = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
    config = {name: layers if name in names else v for name, v in job.model.config.items()}
    if job.model.model_type == "t5":
        config["num_decoder_layers"] = layers
    return replace(job, model=replace(job.model, config=config))


@pytest.mark.slow
def test_layers_that_differ_are_simulated_one_by_one() -> None:
    job = deep(tiny_job("dense"), 9)
    kinds = ["full_attention"] * 4 + ["sliding_attention"] * 5
    own = {"layer_types": kinds, "sliding_window": 8, "use_sliding_window": True}
    config = {**job.model.config, "model_type": "qwen2", **own}
    job = replace(job, model=replace(job.model, model_type="qwen2", config=config))
    stacks = inspect_model(job).stacks
    (predicted,) = simulate(simulation_job(job, stacks=stacks), PhaseFile(None))
    (whole,) = simulate(simulation_job(job), PhaseFile(None))
    assert (
        predicted.sizes[0].measurement.peak_allocated_bytes
        == whole.sizes[0].measurement.peak_allocated_bytes
    )


@pytest.mark.parametrize("prepare", ["peft", "norms"])
def test_the_cache_is_emptied_where_peft_prepares_a_quantized_model(prepare: str) -> None:
    from peft import prepare_model_for_kbit_training

    job = simulation_job(tiny_job("dense", **_QLORA, kbit_prepare=prepare))
    with simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        rung = RecordedRung(recorder.whole.depths)
        for size in (1, 2):  # the load stays on the tape
            recorded = recorder.record(size)
            rung.add(size, recorded.tape, recorded.taken)
    emptied = [rung.layout(size, accumulates=False).order.emptied for size in (1, 2)]
    empties = "auto_clear_cache" in signature(prepare_model_for_kbit_training).parameters
    once = prepare == "peft" and empties  # older releases of peft do not
    assert [len(found) for found in emptied] == ([1, 1] if once else [0, 0])


@pytest.mark.parametrize("prepare", ["peft", "norms"])
def test_a_recording_does_not_depend_on_those_before_it(prepare: str) -> None:
    """In its first step, bitsandbytes casts the biases of 4-bit layers for good."""
    job = simulation_job(tiny_job("gqa-tied", **_QLORA, kbit_prepare=prepare))
    with simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        first, again = (recorder.record(2).tape for _ in range(2))
    assert (first.events, first.blocks) == (again.events, again.blocks)


def test_a_size_between_two_recorded_ones_is_as_if_it_was_recorded() -> None:
    job = simulation_job(tiny_job("gqa-tied", effective_batch_size=16), (1, 2, 4, 8, 16))
    with simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        rung = RecordedRung({})
        for size in (2, 61):
            recorded = recorder.record(size)
            rung.add(size, recorded.tape, recorded.taken)
        assert rung.is_line(2, 61)
        told = rung.layout(8, (2, 61), accumulates=True)
        itself = RecordedRung({})
        recorded = recorder.record(8)
        itself.add(8, recorded.tape, recorded.taken)
    own = itself.layout(8, accumulates=True)
    assert (told.order.events, told.sizes) == (own.order.events, own.sizes)


def test_categories_add_up_to_the_living_bytes_at_every_event() -> None:
    job = simulation_job(tiny_job("dense", method="lora", activation_checkpointing="full"))
    with simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        tape = recorder.record(2).tape
    totals = dict.fromkeys(CATEGORIES, 0)
    alive: set[int] = set()
    for event in tape.events:
        block = tape.blocks[abs(event) - 1]
        totals[block.category] += block.size if event > 0 else -block.size
        if event > 0:
            alive.add(event)
        else:
            alive.remove(-event)
        assert min(totals.values()) >= 0
        assert sum(totals.values()) == sum(tape.blocks[b - 1].size for b in alive)
    assert totals["weights"] > 0
    assert totals["optimizer"] > 0
    assert totals["gradients"] == totals["logits"] == 0
    assert totals["activations"] == 4  # the last loss


LARGE = Target(
    "large", 80 * 1024 * MIB, 79 * 1024 * MIB, 500 * MIB, find_gpu("NVIDIA A100 80GB PCIe", None)
)
SMALL = Target("small", 8 * MIB, 8 * MIB, 4 * MIB, None)


def devices(*targets: Target, number: int = -1) -> tuple[DevicePrediction, ...]:
    job = replace(tiny_job("dense"), mode="simulate")
    job = replace(job, simulation=SimulationRequest((1, 2), targets))
    (prediction,) = simulate(job, PhaseFile(None))
    return prediction.sizes[number].devices


@pytest.mark.parametrize("target", [LARGE, SMALL])
@pytest.mark.parametrize("allocator", ["default", "expandable_segments"])
def test_the_size_that_is_shown_has_a_curve_with_its_peak(target: Target, allocator: str) -> None:
    job = simulation_job(tiny_job("dense", allocator=allocator, job_device_type="cuda"), (1, 2, 4))
    assert job.simulation is not None
    request = replace(job.simulation, targets=(target,), curve=True)
    (prediction,) = simulate(replace(job, simulation=request), PhaseFile(None))
    (drawn,) = [one for one in prediction.sizes if one.measurement.curve is not None]
    fitting = [one for one in prediction.sizes if one.devices[0].fits]
    assert drawn in fitting if fitting else drawn is prediction.sizes[0]
    measured, curve = drawn.measurement, drawn.measurement.curve
    assert curve is not None and measured.breakdown is not None
    assert curve.allocated_bytes[curve.peak] == measured.peak_allocated_bytes
    assert curve.by_category["weights"][curve.peak] >= measured.breakdown.weights_bytes
    assert all(curve.rest_bytes(moment) >= 0 for moment in range(len(curve.event)))
    ends = [*(phase.moment for phase in curve.phases[1:]), len(curve.event)]
    for phase, end in zip(curve.phases, ends, strict=True):
        top = max(curve.allocated_bytes[phase.moment : end])
        assert top <= measured.phases[phase.phase].peak_allocated_bytes
    assert {phase.step for phase in curve.phases} >= {"load", "first", "steady"}


def test_no_curve_is_made_that_nobody_asked_for() -> None:
    job = simulation_job(tiny_job("dense"), (2,))
    (prediction,) = simulate(job, PhaseFile(None))
    assert prediction.sizes[0].measurement.curve is None


def test_recordings_that_cannot_be_written_do_not_cost_the_answer(tmp_path: Path) -> None:
    job = simulation_job(tiny_job("dense"), recordings=str(tmp_path / "no folder" / "file"))
    (predicted,) = simulate(job, PhaseFile(None))
    assert predicted.sizes[0].measurement.peak_allocated_bytes > 0


def test_each_device_gets_its_own_answer() -> None:
    large, small = devices(LARGE, SMALL)
    assert large.fits
    assert large.timing is not None
    assert large.timing.stopped_by == "estimated"
    assert not small.fits
    assert small.missed_by_bytes is not None
    assert small.timing is None


def test_one_device_that_is_too_small_gets_the_words_of_torch() -> None:
    (small,) = devices(SMALL, number=0)
    assert small.oom is not None
    assert small.oom.dialect == "cuda_caching_allocator"
    assert small.oom.requested_bytes is not None


def test_the_peak_is_made_of_named_allocations() -> None:
    job = simulation_job(tiny_job("dense", weights_dtype="bfloat16"), detail=True)
    (prediction,) = simulate(job, PhaseFile(None))
    phases = prediction.sizes[0].phases
    assert {(phase.step, phase.phase) for phase in phases} >= {
        ("load", "load"),
        ("first", "optimizer"),
        ("steady", "backward"),
    }
    for phase in phases:
        assert sum(phase.by_category.values()) == phase.peak_allocated_bytes
        for entry in phase.largest:
            if entry.category in ("weights", "gradients", "optimizer") and entry.size_bytes > 4:
                assert entry.module, (phase.step, phase.phase, entry)  # no step counter
    forward = next(p for p in phases if (p.step, p.phase) == ("steady", "forward"))
    assert any("layers.*" in entry.module for entry in forward.largest)


def test_paged_states_are_no_memory_of_the_allocator() -> None:
    base = {"weights_dtype": "bfloat16", "job_mode": "measure"}
    plain, paged = (
        simulate(simulation_job(wide(tiny_job("dense", optimizer=name, **base))), PhaseFile(None))[
            0
        ].sizes[0]
        for name in ("adamw_bnb_8bit", "paged_adamw_8bit")
    )
    assert plain.measurement.managed_bytes == 0
    assert paged.measurement.managed_bytes > MIB
    assert (
        paged.measurement.peak_allocated_bytes
        < plain.measurement.peak_allocated_bytes - 0.9 * paged.measurement.managed_bytes
    )


def wide(job: ProbeJob) -> ProbeJob:
    """Weights of more elements than bitsandbytes leaves unpaged."""
    config = {**job.model.config, "hidden_size": 512, "intermediate_size": 1024}
    return replace(job, model=replace(job.model, config=config))


def test_a_model_that_looks_at_its_values_is_refused_by_the_operator() -> None:
    with simulated_device(cuda=True), pytest.raises(UnsupportedError, match=r"aten\.nonzero"):
        torch.nonzero(torch.rand(3))
