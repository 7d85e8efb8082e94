"""The tensor that did not fit: figures with two decimals against the shapes of a model."""

from __future__ import annotations

from typing import cast

import pytest
from explain_make import ADAM, LAYER, LLAMA_8B, LOSS, gib
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from oomdoctor.explain.diagnosis.requested import allocation, fits_figure, is_pool_segment, matches
from oomdoctor.explain.memory.model_sizes import sizes_of
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.report.diagnosis import Frame, Incident, ReadPhase, Tensor
from oomdoctor.stacks.partial_config import PartialConfig
from oomdoctor.units import GIB, MIB

LLAMA = sizes_of(LLAMA_8B)
DIALECT = "cuda_caching_allocator"


def _match(
    requested: int, phase: ReadPhase, frames: tuple[Frame, ...] = (), **setup: int
) -> list[Tensor]:
    return list(matches(_failed(requested, phase, frames), LLAMA, cast("PartialConfig", setup)))


def _failed(requested: int, phase: ReadPhase, frames: tuple[Frame, ...]) -> Incident:
    event = OomEvent("", DIALECT, phase, requested_bytes=requested)
    return Incident(event, phase=phase, frames=frames)


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 1, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_the_allocator_rounds_before_it_prints(size: int, asked: int) -> None:
    assert allocation(size, DIALECT) == asked
    assert allocation(size, "cpu_allocator") == size


@hypothesis_given(st.integers(min_value=10 * MIB, max_value=200 * GIB))
def test_what_is_printed_of_a_tensor_fits_it(size: int) -> None:
    asked = allocation(size, DIALECT)
    unit = GIB if asked > GIB else MIB
    printed = round(round(asked / unit, 2) * unit)
    assert fits_figure(size, printed, DIALECT)
    if printed != GIB:  # 1024.00 MiB and 1.00 GiB are the same number with different decimals
        assert not fits_figure(size, printed + unit // 20, DIALECT)


def test_logits_in_float32() -> None:
    first = _match(gib(9.48), "loss", LOSS, micro_batch_size=4, sequence_length=4960)[0]
    assert first.shape == (4, 4960, 128256)
    assert first.bytes == 4 * 4960 * 128256 * 4
    assert first.likelihood == "high"
    assert first.arithmetic == "9.48 GiB = 4 x 4960 x 128256 x 4 bytes: fp32 logits"


def test_logits_in_16_bits_are_told_from_float32() -> None:
    requested = allocation(4 * 4096 * 128256 * 2, DIALECT)
    first = _match(requested, "loss", LOSS, micro_batch_size=4, sequence_length=4096)[0]
    assert first.dtype == "16-bit"


def test_batch_and_length_are_solved_for_when_the_frames_point_there() -> None:
    requested = allocation(2 * 4096 * 128256 * 4, DIALECT)
    shapes = [tensor.shape for tensor in _match(requested, "loss", LOSS)]
    assert (2, 4096, 128256) in shapes or (1, 8192, 128256) in shapes
    assert all(tensor.likelihood != "high" for tensor in _match(requested, "loss", LOSS))


def test_no_guess_without_frames() -> None:
    requested = allocation(2 * 4096 * 128256 * 4, DIALECT)
    assert not [t for t in _match(requested, "unknown") if "logits" in t.name]


def test_embedding_state_in_the_optimizer() -> None:
    first = _match(1002 * MIB, "optimizer", ADAM)[0]
    assert first.shape == (128256, 4096)
    assert "optimizer state" in first.name
    assert first.dtype == "16-bit"


def test_attention_scores() -> None:
    eager = Frame("/s/transformers/models/llama/modeling_llama.py", 180, "eager_attention_forward",
                  "attn_weights = nn.functional.softmax(attn_weights, dim=-1)")  # fmt: skip
    requested = 2 * 32 * 4096 * 4096 * 4
    first = _match(requested, "forward", (*LAYER, eager), micro_batch_size=2, sequence_length=4096)
    assert first[0].shape == (2, 32, 4096, 4096)
    assert "attention scores" in first[0].name


def test_mlp_intermediate() -> None:
    requested = allocation(8 * 4096 * 14336 * 2, DIALECT)
    first = _match(requested, "forward", LAYER, micro_batch_size=8, sequence_length=4096)[0]
    assert "MLP intermediate" in first.name


@pytest.mark.parametrize("size", [2 * MIB, 20 * MIB])
def test_pool_segments_tell_no_tensor(size: int) -> None:
    assert is_pool_segment(size, DIALECT)
    assert _match(size, "forward", LAYER, micro_batch_size=1, sequence_length=512) == []


def test_no_match_is_no_match() -> None:
    assert _match(gib(3.33), "forward", LAYER, micro_batch_size=4, sequence_length=512) == []


def test_known_vocabulary_without_a_model() -> None:
    failed = _failed(allocation(2 * 2048 * 151936 * 4, DIALECT), "loss", LOSS)
    found = matches(failed, None, {"micro_batch_size": 2, "sequence_length": 2048})
    assert "Qwen" in found[0].name


def test_deepspeed_bucket() -> None:
    frame = Frame("/s/deepspeed/runtime/zero/stage_1_and_2.py", 9, "__init__", None)
    found = matches(_failed(954 * MIB, "init", (frame,)), None, {})
    assert "DeepSpeed bucket" in found[0].name


@pytest.mark.parametrize(("length", "solved"), [(4960, 4960), (4952, 4952), (4957, 4956)])
def test_a_length_that_is_solved_for_is_one_that_collators_pad_to(length: int, solved: int) -> None:
    requested = round(round(4 * length * 128256 * 4 / GIB, 2) * GIB)
    best = _match(requested, "loss", LOSS, micro_batch_size=4)[0]
    assert best.shape == (4, solved, 128256)


def test_few_models_have_gate_and_up_in_one() -> None:
    names = [one.name for one in _match(448 * MIB, "forward", LAYER, micro_batch_size=1,
                                        sequence_length=4096)]  # fmt: skip
    assert not any("gate and up" in name for name in names)
    fused = Frame("/s/transformers/models/phi3/modeling_phi3.py", 80, "forward", "gate_up_proj(x)")
    names = [one.name for one in _match(448 * MIB, "forward", (*LAYER, fused), micro_batch_size=2,
                                        sequence_length=4096)]  # fmt: skip
    assert any("gate and up" in name for name in names)
