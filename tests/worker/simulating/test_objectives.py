"""Simulated steps of objectives, of packed and of padded rows against measured ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_steps import differences, quick, simulated_peaks, simulation_job
from tiny_image_configs import MORE_WITH_IMAGES, OTHER_IMAGES
from tiny_models import tiny_job

from oomdoctor.records.job.simulation import Target
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.training.inspection import inspect_model


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Libraries make a few tables at their first use, which later measurements do not see."""
    measure(quick(tiny_job("dense")), PhaseFile(None))


@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        ("dense", {"packing": "packed", "document_length": 12}),
        ("gqa-tied", {"packing": "padding_free", "attention": "eager", "method": "lora"}),
        # A single document has no mask.
        ("dense", {"packing": "padding_free", "micro_batch_size": 1}),
    ],
)
def test_packed_rows_need_what_was_measured(kind: str, rung: dict[str, Any]) -> None:
    found = differences(tiny_job(kind, **rung))
    assert set(found.values()) == {0}, found


@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        ("dense", {"padding": "longest"}),
        ("dense", {"padding": "longest", "micro_batch_size": 1}),
        ("dense", {"padding": "max_length", "micro_batch_size": 1}),
        ("gqa-tied", {"padding": "longest", "method": "lora", "activation_checkpointing": "full"}),
        ("gqa-tied", {"padding": "max_length", "attention": "eager"}),
        ("encoder", {"padding": "longest"}),
    ],
)
def test_padded_rows_need_what_was_measured(kind: str, rung: dict[str, Any]) -> None:
    found = differences(tiny_job(kind, **rung))
    assert set(found.values()) == {0}, found


def test_attention_that_takes_padding_out_is_not_simulated() -> None:
    job = tiny_job(padding="longest", attention="flash_attention_2", weights_dtype="bfloat16")
    with pytest.raises(UnsupportedError, match="takes the padding out"):
        simulated_peaks(job)


@pytest.mark.parametrize(
    "rung",
    [
        # Each size is recorded, because none lies on a line through others.
        {"packing": "padding_free", "attention": "eager"},
        # A batch of one row has no mask, so no size lies on a line through it.
        {"padding": "longest"},
        {"padding": "max_length"},
    ],
)
def test_masks_of_all_sizes_are_those_of_each_alone(rung: dict[str, Any]) -> None:
    job = tiny_job(**rung, effective_batch_size=16)
    card = (Target("card", 1 << 40, 1 << 40, 0, None),)

    def peak(size: int, sizes: tuple[int, ...]) -> int:
        one = replace(job, config=job.config.with_micro_batch(size))
        with clean_slate():
            made = simulation_job(one, sizes, every_size=True)
            assert made.simulation is not None
            made = replace(made, simulation=replace(made.simulation, targets=card))
            (found,) = simulate(made, PhaseFile(None))
        by_size = {each.micro_batch_size: each for each in found.sizes}
        return by_size[size].measurement.peak_allocated_bytes

    sizes = (1, 2, 4, 8, 16)
    for size in (1, 2, 8):
        assert peak(size, sizes) == peak(size, (size,)), size


@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        ("dense", {"objective": "dpo"}),
        ("gqa-tied", {"objective": "dpo", "method": "lora", "activation_checkpointing": "full"}),
        ("dense", {"objective": "dpo", "reference": "precomputed", "completion_length": 20}),
        ("dense", {"objective": "reward", "method": "lora"}),
        ("dense", {"objective": "grpo", "num_generations": 2, "reference": "kl"}),
        ("gqa-tied", {"objective": "grpo", "num_generations": 4, "method": "lora"}),
        ("dense", {"objective": "dpo", "padding": "longest"}),
        ("dense", {"objective": "reward", "padding": "max_length"}),
        ("dense", {"loss": "chunked", "padding": "longest"}),
        ("dense", {"loss": "chunked"}),
        ("gqa-tied", {"loss": "chunked", "method": "lora", "activation_checkpointing": "full"}),
        ("dense", {"loss": "chunked", "packing": "packed", "document_length": 12}),
    ],
)
def test_objectives_need_what_was_measured(kind: str, rung: dict[str, Any]) -> None:
    pytest.importorskip("trl.kernels", exc_type=ImportError)
    found = differences(tiny_job(kind, **rung))
    assert set(found.values()) == {0}, found


@pytest.mark.parametrize("as_cuda", [True, False])
@pytest.mark.parametrize(
    "rung",
    [
        {"objective": "reward"},
        {"objective": "dpo", "weights_dtype": "bfloat16"},
        {"objective": "dpo", "method": "lora", "activation_checkpointing": "full"},
        {"objective": "grpo", "num_generations": 2, "reference": "kl"},
        {"loss": "chunked", "autocast_dtype": "bfloat16"},
    ],
)
def test_few_layers_tell_what_many_need_in_both_models(rung: dict[str, Any], as_cuda: bool) -> None:
    pytest.importorskip("trl.kernels", exc_type=ImportError)
    job = tiny_job(**rung)
    deep = {**job.model.config, "num_hidden_layers": 8}
    job = replace(job, model=replace(job.model, config=deep))
    with clean_slate():
        whole = simulated_peaks(job, as_cuda=as_cuda)
    with clean_slate():
        stacks = inspect_model(job).stacks
        assert simulated_peaks(job, stacks=stacks, as_cuda=as_cuda) == whole


@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        ("llava", {}),
        ("llava", {"vision": "frozen", "method": "lora"}),
        ("smolvlm", {"activation_checkpointing": "full"}),
        ("smolvlm", {"images": 2}),
        ("qwen2_5_vl", {"image_size": 32}),
    ],
)
def test_models_with_images_need_what_was_measured(kind: str, rung: dict[str, Any]) -> None:
    found = differences(tiny_job(kind, **rung))
    # Qwen's model keeps an offset of 8 bytes for each row, from one step to the next.
    slack = 8 * 2 if kind == "qwen2_5_vl" else 0
    assert all(abs(difference) <= slack for difference in found.values()), found


@pytest.mark.parametrize("kind", MORE_WITH_IMAGES)
@pytest.mark.parametrize("images", [1, 2])
def test_how_a_model_takes_images_is_read_from_itself(kind: str, images: int) -> None:
    """Their simulated steps need what measured ones do, and the images are among them."""
    pytest.importorskip("transformers", minversion="5.0")
    job = tiny_job(kind, images=images, sequence_length=64, image_size=_SIDES.get(kind, 0))
    found = differences(job)
    slack = 8 * 2 if kind.startswith("qwen") else 0  # it keeps the offsets of rows
    assert all(abs(difference) <= slack for difference in found.values()), found
    text = differences(replace(job, config=replace(job.config, images=0)))
    assert all(abs(difference) <= slack for difference in text.values()), text
    with clean_slate():
        one = max(simulated_peaks(job).values())
    with clean_slate():
        none = max(simulated_peaks(replace(job, config=replace(job.config, images=0))).values())
    assert one != none


@pytest.mark.parametrize("kind", OTHER_IMAGES)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_images_beside_the_text_or_alone_need_what_was_measured(kind: str, method: Any) -> None:
    pytest.importorskip("transformers", minversion="5.0")
    side = 16 if kind == "pix2struct" else 0
    found = differences(tiny_job(kind, image_size=side, method=method))
    assert not any(found.values()), found


_SIDES = {"mistral3": 16, "qwen3_vl": 32, "qwen3_5": 32, "llava_next": 16}


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl"])
def test_few_layers_of_the_language_model_tell_what_many_need(kind: str) -> None:
    job = tiny_job(kind, image_size=32 if kind == "qwen2_5_vl" else 0)
    config: dict[str, Any] = {**job.model.config}
    layers = {"num_hidden_layers": 8}
    nested = {"text_config": {**config["text_config"], **layers}} if "text_config" in config else {}
    deep = {**config, **(nested or layers)}
    job = replace(job, model=replace(job.model, config=deep))
    with clean_slate():
        whole = simulated_peaks(job)
    with clean_slate():
        stacks = inspect_model(job).stacks
        assert simulated_peaks(job, stacks=stacks) == whole


@pytest.mark.parametrize("packed", [{}, {"packing": "packed", "document_length": 8}])
def test_with_a_large_vocabulary_the_peak_falls_by_about_the_logits(packed: dict[str, Any]) -> None:
    """On CUDA the usual loss has scores in bfloat16, a copy in float32, and two gradients."""
    pytest.importorskip("trl.kernels", exc_type=ImportError)
    size, length, vocabulary, hidden = 4, 2048, 152_000, 64
    rung = {"weights_dtype": "bfloat16", "micro_batch_size": size, "sequence_length": length}
    job = tiny_job(**rung, effective_batch_size=2 * size, **packed)
    config = {**job.model.config, "vocab_size": vocabulary, "max_position_embeddings": length}
    job = replace(job, model=replace(job.model, config=config))

    def peak(loss: Any) -> int:
        one = replace(job, config=replace(job.config, loss=loss))
        with clean_slate():
            return max(simulated_peaks(one, size, as_cuda=True).values())

    scores = size * length * vocabulary
    freed = peak("default") - peak("chunked")
    tile = 2 * 4096 * 32768
    gradient = 4 * vocabulary * hidden  # of the head, in float32
    assert 12 * scores - tile - 4 * gradient < freed < 12 * scores


@pytest.mark.parametrize(
    ("kind", "rung"),
    [
        ("whisper", {"weights_dtype": "bfloat16", "audio_seconds": 30}),
        ("whisper", {"method": "lora", "activation_checkpointing": "full"}),
        ("ctc", {"audio_seconds": 2}),
        ("ctc", {"audio_seconds": 2, "method": "lora"}),
        ("named-sounds", {"audio_seconds": 2}),
        ("beside-text", {"sequence_length": 400}),
        ("beside-text", {"sequence_length": 400, "method": "lora"}),
        ("each-token-hears", {"sequence_length": 25, "audio_seconds": 2}),
    ],
)
def test_recordings_need_what_was_measured(kind: str, rung: dict[str, Any]) -> None:
    if kind in ("beside-text", "each-token-hears"):
        pytest.importorskip("transformers", minversion="5.24")
    found = differences(tiny_job(kind, **rung))
    assert set(found.values()) == {0}, found
