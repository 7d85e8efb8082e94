"""Kernels by hand, what binds, what is unknown, calibration, and published speeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.analysis.speed.hosts import COMPILED, eager_s
from oomdoctor.analysis.speed.memory_bound import IRREGULAR, PASSES, RELAYING, SUMS, UNPACKING
from oomdoctor.analysis.speed.products import UNALIGNED
from oomdoctor.analysis.speed.roofline import RAMP_S, efficiency_of, estimate
from oomdoctor.records.job.costs import TF32, Calibration, EstimatedTime, OpCost
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.system.catalogue import find_gpu, gpus

SPEEDS = json.loads(
    (Path(__file__).parents[4] / "tests/data/published_speed.json").read_text(encoding="utf-8")
)


def card(name: str) -> GpuFacts:
    found = find_gpu(name)
    assert found is not None, name
    return found


A100 = card("A100-SXM4-80GB")


def product(flops: float, dtype: str = "bfloat16", moved: float = 1e6) -> OpCost:
    return OpCost("mm", "matmul", dtype, flops, moved)


def stream(moved: float) -> OpCost:
    return OpCost("add", "elementwise", "bfloat16", 0.0, moved)


def times(*costs: OpCost, gpu: GpuFacts = A100, known: Calibration | None = None) -> EstimatedTime:
    found = estimate([(cost, 1) for cost in costs], gpu, known)
    assert found is not None
    return found


def test_a_large_product_runs_at_the_efficiency_of_the_peak() -> None:
    found = times(product(1e14))
    assert found.seconds == pytest.approx(1e14 / (0.80 * 312e12) + RAMP_S)
    assert found.bound_by["compute"] > 0.99


def test_a_large_stream_runs_at_the_efficiency_of_the_bandwidth() -> None:
    found = times(stream(1e12))
    assert found.seconds == pytest.approx(1e12 / (0.85 * 2039e9) + RAMP_S)
    assert found.bound_by["bandwidth"] > 0.99


def test_arithmetic_and_traffic_of_one_kernel_overlap_but_kernels_do_not() -> None:
    both = times(product(1e13, moved=1e9), product(1e9, moved=1e11))
    alone = times(product(1e13, moved=0.0)).seconds + times(product(0.0, moved=1e11)).seconds
    assert both.seconds == pytest.approx(alone, rel=1e-3)
    assert sum(both.bound_by.values()) == pytest.approx(1.0)


def test_many_small_operators_take_the_host_s_time() -> None:
    found = times(*[stream(1e3)] * 1000)
    assert found.seconds == found.host_s == pytest.approx(1000 * eager_s(A100))
    assert found.bound_by == {"compute": 0.0, "bandwidth": 0.0, "launch": 1.0}
    assert found.device_s < found.seconds


def test_nothing_takes_no_time() -> None:
    assert times().seconds == 0.0


def test_a_copy_to_the_host_is_bound_by_the_link() -> None:
    copy = OpCost("_to_copy", "copy", "bfloat16", 0.0, 2.2e9)
    assert times(copy).seconds == pytest.approx(0.1 + RAMP_S)


def test_attention_is_slower_than_a_product_of_the_same_size() -> None:
    fused = OpCost("flash", "attention", "bfloat16", 1e14, 1e6)
    assert times(fused).seconds > 1.3 * times(product(1e14)).seconds


def test_float32_products_do_not_use_tensor_cores() -> None:
    assert times(product(1e13, "float32")).seconds == pytest.approx(
        1e13 / (0.93 * 19.5e12) + RAMP_S
    )


def test_emulated_bfloat16_is_slower_than_float32() -> None:
    t4 = card("T4")
    slow, plain = times(product(1e13), gpu=t4), times(product(1e13, "float32"), gpu=t4)
    assert slow.seconds > 1.5 * plain.seconds > 5 * times(product(1e13, "float16"), gpu=t4).seconds


def test_without_tensor_cores_float16_is_no_faster_than_float32() -> None:
    pascal = card("GTX 1080 Ti")
    half, single = (
        times(product(1e13, "float16"), gpu=pascal),
        times(product(1e13, "float32"), gpu=pascal),
    )
    assert half.seconds == pytest.approx(single.seconds)


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        (card("MI300X"), "bfloat16"),
        (card("A10G"), "bfloat16"),
        (card("B100"), "bfloat16"),
        (card("TITAN V"), "float16"),
        (card("RTX 4090"), "float64"),
        (replace(A100, bandwidth_bytes_per_s=None), "bfloat16"),
        (replace(A100, compute_capability="99.0"), "bfloat16"),
    ],
)
def test_an_unknown_peak_gives_no_estimate(gpu: GpuFacts, dtype: str) -> None:
    assert estimate([(product(1e12, dtype), 1)], gpu) is None


def test_a_missing_peak_does_not_matter_to_what_does_not_multiply() -> None:
    assert estimate([(stream(1e9), 1)], card("A10G")) is not None


def test_every_nvidia_card_has_a_row_unless_its_facts_end_before_it() -> None:
    without = {g.name for g in gpus() if g.vendor == "NVIDIA" and efficiency_of(g) is None}
    assert without == {"NVIDIA GB10"}


def test_geforce_and_power_limited_cards_are_told_apart() -> None:
    assert efficiency_of(card("RTX 4090")) != efficiency_of(card("L40S"))
    assert efficiency_of(card("L4")) != efficiency_of(card("L40S"))
    assert efficiency_of(card("H100 PCIe")) != efficiency_of(card("H200"))


def test_an_operator_counts_as_often_as_it_runs() -> None:
    costs = [(product(1e13), 2), (stream(1e9), 3)]
    found = estimate(costs, A100)
    assert found is not None
    apart = times(*[product(1e13)] * 2, *[stream(1e9)] * 3)
    assert found.seconds == pytest.approx(apart.seconds)
    assert found.bound_by == pytest.approx(apart.bound_by)


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", "two_bytes"), ("float32", "wider")])
def test_kernels_without_vector_loads_wait_for_the_multiprocessors(dtype: str, width: str) -> None:
    cast = OpCost("_to_copy", "irregular", dtype, 0.0, 1e12)
    rate = 1e12 / (times(cast).seconds - RAMP_S)
    assert rate == pytest.approx(108 * 1.41e9 * IRREGULAR[width])
    # An RTX 3090 has less bandwidth for each of its multiprocessors.
    rtx = card("RTX 3090")
    assert times(cast, gpu=rtx).seconds < 1.05 * times(stream(1e12), gpu=rtx).seconds


def test_norms_read_their_rows_again() -> None:
    norm = OpCost("native_layer_norm", "elementwise", "bfloat16", 0.0, 1e12)
    again = (times(norm).seconds - RAMP_S) / (times(stream(1e12)).seconds - RAMP_S)
    assert again == pytest.approx(PASSES["native_layer_norm"])


@pytest.mark.parametrize(
    ("name", "passes", "published_s"),
    [("native_group_norm", 2, 0.982e-3), ("native_group_norm_backward", 3, 1.316e-3)],
)
def test_group_norms_wait_for_the_multiprocessors(
    name: str, passes: int, published_s: float
) -> None:
    """github linkedin/Liger-Kernel benchmark/data, group_norm huggingface, a B200."""
    size = 128 * 2048 * 512 * 4.0
    norm = OpCost(name, "irregular", "float32", 0.0, passes * size)
    assert times(norm, gpu=card("B200")).seconds == pytest.approx(published_s, rel=0.15)


def test_gradients_of_a_norm_s_weights_wait_for_the_multiprocessors() -> None:
    name = "native_layer_norm_backward"
    norm = OpCost(name, "elementwise", "bfloat16", 0.0, 1e12)
    sums = times(norm).seconds - RAMP_S - PASSES[name] * 1e12 / (0.85 * 2039e9)
    assert sums == pytest.approx(SUMS[name] * 1e12 / (108 * 1.41e9 * IRREGULAR["wider"]))


def convolution(dtype: str, relaid: float, gpu: GpuFacts = A100) -> float:
    """Seconds of a convolution of 1e13 FLOP, whose input is brought into another layout."""
    shape = (1, 65536, 4096, 2048)
    cost = OpCost("convolution", "conv", dtype, 1e13, 0.0, shape=shape, relaid_bytes=relaid)
    return times(cost, gpu=gpu).seconds - RAMP_S


def test_tensor_cores_need_the_tensors_of_a_convolution_in_another_layout() -> None:
    relaying = 1e9 / (RELAYING * 0.85 * 2039e9)
    assert convolution("float16", 1e9) == pytest.approx(convolution("float16", 0.0) + relaying)
    pascal = card("GTX 1080 Ti")
    assert convolution("float16", 1e9, pascal) == convolution("float16", 0.0, pascal)


def test_a_float32_convolution_takes_the_fastest_way_that_the_card_has() -> None:
    # TF32 on an A100 is 8 times as fast as float32, on an RTX 3090 as fast.
    assert convolution("float32", 1e9) < convolution("float32", 1e12)
    alone = convolution("float32", 0.0)
    assert alone == pytest.approx(1e13 / (0.80 * 156e12), rel=0.01)
    slow = 1e13 / (0.93 * 19.5e12)
    assert convolution("float32", 1e12) == pytest.approx(slow, rel=0.01)
    rtx = card("RTX 3090")
    assert convolution("float32", 1e12, rtx) == pytest.approx(1e13 / (0.68 * 35.58e12), rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "reached"), [("A100-SXM4-80GB", 0.80 * 156e12), ("RTX 2080 Ti", 0.90 * 13.45e12)]
)
def test_products_in_tf32_run_on_tensor_cores_that_have_it(gpu: str, reached: float) -> None:
    found = times(product(1e14, TF32, 0.0), gpu=card(gpu))
    assert found.seconds - RAMP_S == pytest.approx(1e14 / reached)


def test_a_compiled_step_is_launched_faster() -> None:
    costs = [(stream(1e3), 1000)]
    eager, compiled = estimate(costs, A100), estimate(costs, A100, host=COMPILED)
    assert eager is not None and compiled is not None
    assert compiled.host_s == pytest.approx(1000 * COMPILED.kernel_s + COMPILED.call_s)
    assert compiled.host_s < eager.host_s / 2


def shaped(*shape: int) -> float:
    """Seconds of a bfloat16 product of (batch, m, n, k), without its traffic."""
    batch, rows, columns, depth = shape
    flops = 2.0 * batch * rows * columns * depth
    return times(OpCost("mm", "matmul", "bfloat16", flops, 0.0, shape=shape)).seconds - RAMP_S


def test_a_product_that_fills_no_wave_takes_as_long_as_one_that_does() -> None:
    # 108 multiprocessors: 64 tiles of 128 leave some without work.
    assert shaped(1, 1024, 1024, 1024) > 1.3 * shaped(1, 4096, 4096, 1024) / 16
    assert shaped(64, 128, 128, 1024) == pytest.approx(shaped(1, 1024, 1024, 1024))
    assert shaped(1, 1, 4096, 1024) == pytest.approx(shaped(1, 32, 4096, 1024))


def test_few_tiles_are_split_along_k() -> None:
    # The gradient of an adapter's weights: 32 tiles, whose k is the tokens.
    assert shaped(1, 16, 4096, 16384) < 20 * shaped(1, 16, 4096, 128)


def test_large_products_reach_the_rate() -> None:
    rate = 2.0 * 16384**3 / shaped(1, 16384, 16384, 16384)
    assert rate == pytest.approx(0.80 * 312e12, rel=0.01)


def test_an_odd_vocabulary_makes_a_product_slower() -> None:
    aligned, odd = shaped(1, 8192, 50304, 768), shaped(1, 8192, 50257, 768)
    assert odd / aligned == pytest.approx(1 / UNALIGNED, rel=0.01)


def attention(
    name: str,
    length: int,
    *,
    causal: bool = True,
    width: int = 128,
    gpu: GpuFacts = A100,
    dtype: str = "bfloat16",
) -> float:
    """FLOP/s of attention on rows of a length."""
    shape = (4096, length, length, width, int(causal))
    cost = OpCost(name, "attention", dtype, 1e15, 0.0, shape=shape)
    return 1e15 / (times(cost, gpu=gpu).seconds - RAMP_S)


def test_attention_reaches_more_for_long_rows_wide_heads_and_forward() -> None:
    long = attention("flash", 16384)
    assert long > 1.5 * attention("flash", 512)
    assert attention("flash", 512, causal=False) > 1.4 * attention("flash", 512)
    assert attention("flash", 16384, width=64) == pytest.approx(0.86 * long)
    assert attention("flash_backward", 16384) == pytest.approx(0.63 / 0.73 * long)


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "RTX 4090", "H100 80GB HBM3"])
def test_the_kernel_that_takes_a_mask_is_slower_than_flash(name: str) -> None:
    gpu = card(name)
    flash = attention("flash", 8192, causal=False, gpu=gpu)
    masked = attention("efficient", 8192, causal=False, gpu=gpu)
    assert masked < 0.6 * flash
    assert attention("efficient_backward", 8192, causal=False, gpu=gpu) < masked


def test_cudnn_s_attention_is_faster_where_torch_prefers_it() -> None:
    b200 = card("B200")
    assert attention("cudnn", 8192, gpu=b200) > 3 * attention("flash", 8192, gpu=b200)


def test_cudnn_s_attention_differs_by_card_head_and_type() -> None:
    b200, b300 = card("B200"), card("B300")
    assert attention("cudnn", 8192, gpu=b300) > 1.2 * attention("cudnn", 8192, gpu=b200)
    back = attention("cudnn_backward", 8192, gpu=b200)
    assert attention("cudnn_backward", 8192, width=192, gpu=b200) == pytest.approx(0.83 * back)
    usual = attention("cudnn", 8192, gpu=b200)
    assert attention("cudnn", 8192, width=192, gpu=b200) == usual
    fp8 = attention("cudnn", 8192, gpu=b200, dtype="float8_e4m3fn")
    assert fp8 == pytest.approx(1.25 * usual)


def test_unpacking_a_weight_comes_before_its_product() -> None:
    packed = OpCost("gemm_4bit", "quantised", "bfloat16", 1e13, 1e6, unpacked_bytes=1e9)
    alone = times(OpCost("dequantize_4bit", "quantised", "bfloat16", 0.0, 1e9)).seconds
    assert alone == pytest.approx(1e9 / (UNPACKING * 0.85 * 2039e9) + RAMP_S)
    assert times(packed).seconds == pytest.approx(times(product(1e13)).seconds + alone - RAMP_S)


def test_packing_a_weight_is_a_stream() -> None:
    packing = OpCost("quantize_4bit", "quantised", "bfloat16", 0.0, 1e12)
    assert times(packing).seconds == pytest.approx(times(stream(1e12)).seconds)


def test_a_calibration_holds_for_what_binds() -> None:
    known = Calibration(compute=2.0, bandwidth=3.0, launch=4.0)
    assert times(product(1e14, moved=0.0), known=known).seconds == pytest.approx(
        2 * 1e14 / (0.80 * 312e12) + 4 * RAMP_S
    )
    packed = OpCost("gemm_4bit", "quantised", "bfloat16", 0.0, 0.0, unpacked_bytes=1e12)
    assert times(packed, known=known).seconds == pytest.approx(
        3 * (times(packed).seconds - RAMP_S) + 4 * RAMP_S
    )


def multiplied(config: dict[str, Any]) -> tuple[float, float]:
    """Parameters of the layers and of the head that a token is multiplied with (Llama's shape)."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shared = config["num_key_value_heads"] / config["num_attention_heads"]
    layer = 2 * width**2 * (1 + shared) + 3 * width * inner
    return config["num_hidden_layers"] * layer, width * config["vocab_size"]


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in SPEEDS
        if row["seq_len"] >= 2048
        and row["trust"] != "low"
        and "hidden_size" in (row["config"] or {})
    ],
    ids=lambda row: row["id"],
)
def test_published_runs_are_slower_than_their_products_alone_but_not_by_far(
    row: dict[str, Any],
) -> None:
    layers, head = multiplied(row["config"])
    # Forward, recomputed forward and input gradients; weight gradients only in full training.
    passes = 4 if row["method"] == "full" else 3
    flops = 2 * (passes * layers + (passes - 1) * head)
    products = times(product(flops * 1e6)).seconds
    measured = 1e6 / row["tokens_per_s"]
    assert products < measured < 3.5 * products


def test_published_speeds_carry_all_that_a_simulation_needs() -> None:
    assert len(SPEEDS) >= 30
    assert len({row["id"] for row in SPEEDS}) == len(SPEEDS)
    for row in SPEEDS:
        assert row["tokens_per_s"] > 0
        assert row["source"].startswith("github:")
        assert find_gpu(row["gpu"]) or row["gpu"] == "A100 80GB"


def test_checkpointing_takes_the_host_longer_but_no_longer_than_the_slowest() -> None:
    b200, rtx = card("B200"), card("RTX 3090")
    assert eager_s(b200, checkpoints=True) == pytest.approx(1.6 * eager_s(b200))
    assert eager_s(rtx) < eager_s(rtx, checkpoints=True) == eager_s(A100, checkpoints=True)
    assert eager_s(A100, checkpoints=True) == eager_s(A100)


def test_newer_cards_are_in_newer_machines() -> None:
    operators = [stream(1e3)] * 661  # a forward pass of Llama-3.2-1B on a B200 takes 8.1 ms
    assert times(*operators, gpu=card("B200")).seconds == pytest.approx(8.1e-3, rel=0.05)
    assert times(*operators).seconds > times(*operators, gpu=card("RTX 3090")).seconds > 10e-3
