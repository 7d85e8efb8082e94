"""Convolutions: against published times of single ones, and which kernels there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomdoctor.analysis.speed.convolutions import untimed_group
from oomdoctor.analysis.speed.roofline import estimate
from oomdoctor.records.job.costs import Filter, OpCost
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.system.catalogue import find_gpu

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def card(name: str) -> GpuFacts:
    gpu = find_gpu(name)
    assert gpu is not None, name
    return gpu


A100, V100, T4 = card("A100-SXM4-80GB"), card("V100-SXM2-16GB"), card("T4")
RTX_3090, RTX_4090 = card("RTX 3090"), card("RTX 4090")


def convolution(
    dtype: str,
    images: int,
    channels: int,
    side: int,
    made: int,
    filter_side: int = 3,
    *,
    stride: int = 1,
    groups: int = 1,
    channels_last: bool = False,
    gradients: int = 0,
) -> OpCost:
    """A convolution of square images that keeps their size, but for its stride."""
    places = (side // stride) ** 2
    taps = filter_side**2
    shape = (groups, images * places, made // groups, channels // groups * taps)
    flops = 2.0 * images * places * made * channels // groups * taps
    item = BYTES[dtype]
    source, result = images * channels * side**2 * item, images * made * places * item
    passes = max(1, gradients)
    return OpCost(
        "convolution_backward" if gradients else "convolution",
        "conv",
        dtype,
        flops * passes,
        float(passes * (source + result)),
        shape=shape,
        relaid_bytes=0.0 if channels_last else 2.0 * source,
        filter=Filter(taps, True, stride, side, places, channels_last),
    )


def seconds(cost: OpCost, gpu: GpuFacts) -> float:
    estimated = estimate([(cost, 1)], gpu)
    assert estimated is not None
    return estimated.device_s


@pytest.mark.parametrize(
    ("gpu", "cost", "published_s"),
    [
        # github baidu-research/DeepBench results/train @da81ba78
        (V100, convolution("float32", 16, 128, 56, 256), 900e-6),
        (V100, convolution("float32", 16, 128, 56, 256, gradients=1), 936e-6),
        (T4, convolution("float32", 16, 128, 56, 256), 2867e-6),
        (V100, convolution("float16", 16, 512, 28, 128, 1), 41e-6),
        (T4, convolution("float16", 16, 512, 28, 128, 1), 76e-6),
        # github HIT-HPC-Group/Depthwise_Separable_Convolution_Optimization @e6b9dc77: a V100S
        (V100, convolution("float32", 128, 32, 112, 32, groups=32), 1103e-6),
        (V100, convolution("float32", 128, 96, 112, 96, stride=2, groups=96), 1090e-6),
    ],
)
def test_published_times_of_single_convolutions(
    gpu: GpuFacts, cost: OpCost, published_s: float
) -> None:
    assert seconds(cost, gpu) == pytest.approx(published_s, rel=0.3)


@pytest.mark.parametrize(("side", "published_s"), [(3, 3.527e-3), (7, 14.64e-3), (31, 270.4e-3)])
def test_both_passes_of_single_channels(side: int, published_s: float) -> None:
    """github ShqWW/dwconv2d @f2b2c55f, an RTX 4090, float32."""
    sizes = ("float32", 64, 384, 64, 384, side)
    passes = [convolution(*sizes, groups=384, gradients=number) for number in (0, 2)]
    assert sum(seconds(each, RTX_4090) for each in passes) == pytest.approx(published_s, rel=0.25)


def test_groups_use_tensor_cores_in_channels_last_layout_only() -> None:
    sizes = ("float16", 64, 512, 28, 512)
    last = convolution(*sizes, groups=16, channels_last=True)
    assert seconds(last, RTX_3090) < seconds(convolution(*sizes, groups=16), RTX_3090) / 1.5
    # 2 x 9 x 32 x 512 x 28 x 28 x 64 FLOPs at 62 % or less of the float32 peak.
    others = convolution(*sizes, groups=8)
    assert seconds(others, RTX_3090) > others.flops / 35.6e12
    slow = replace(others, filter=filter_last(others))
    assert estimate([(slow, 1)], RTX_3090) is None
    assert [untimed_group(each) for each in (slow, others, last)] == [64, None, None]


def filter_last(cost: OpCost) -> Filter:
    assert cost.filter is not None
    return replace(cost.filter, channels_last=True)


def test_three_channels_have_no_tensor_cores_before_ampere() -> None:
    cost = convolution("float16", 16, 3, 224, 64)
    assert seconds(cost, V100) > cost.flops / V100.fp32_flops  # type: ignore[operator]
    assert seconds(cost, A100) < seconds(cost, V100) / 2


def test_winograd_multiplies_less_where_there_is_no_tf32() -> None:
    cost = convolution("float32", 16, 256, 28, 512)
    assert seconds(cost, V100) < cost.flops / V100.fp32_flops  # type: ignore[operator]
    wide = convolution("float32", 16, 256, 28, 512, 5)
    assert seconds(wide, V100) > wide.flops / V100.fp32_flops  # type: ignore[operator]
    assert seconds(replace(cost, filter=filter_last(cost)), V100) > seconds(cost, V100) * 1.5


@pytest.mark.parametrize(
    ("dtype", "channels", "side", "stride", "faster"),
    [
        ("float16", 64, 56, 1, True),
        ("bfloat16", 64, 56, 1, False),
        ("float16", 16, 56, 1, False),
        ("float16", 64, 56, 2, False),
        ("float16", 512, 28, 2, True),
    ],
)
def test_pytorch_calls_cudnn_for_some_single_channels(
    dtype: str, channels: int, side: int, stride: int, faster: bool
) -> None:
    """ATen/native/Convolution.cpp, check_cudnn_depthwise_workload_with_filter."""
    cost = convolution(dtype, 256, channels, side, channels, stride=stride, groups=channels)
    alone = replace(cost, dtype="bfloat16")
    assert (seconds(cost, A100) < seconds(alone, A100) * 0.95) is faster


def test_a_convolution_takes_the_host_longer_than_another_operator() -> None:
    """github pytorch/pytorch#51390: 52 us for a small one, in 2021."""
    forward, both = (convolution("float32", 1, 8, 8, 8, gradients=number) for number in (0, 2))
    assert host_s(forward) == pytest.approx(52e-6, rel=0.05)
    assert host_s(both) == pytest.approx(2 * host_s(forward))
    assert host_s(replace(forward, kind="elementwise", flops=0.0)) == pytest.approx(24e-6)


def host_s(cost: OpCost) -> float:
    estimated = estimate([(cost, 1)], A100)
    assert estimated is not None
    return estimated.host_s
