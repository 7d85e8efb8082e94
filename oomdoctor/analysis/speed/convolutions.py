"""How long convolutions take: those of all channels, in groups, and of single channels.

A convolution is a product of (groups, m, n, k) with a row for each place of its result. Backward it
is two: (m, k, n) for its input and (n, k, m) for its weights. Each takes the fastest kernel that
cuDNN or PyTorch has for it:

- on tensor cores: 16 bits, and float32 as TF32. cuDNN's kernels read channels-last (NHWC) tensors;
  others are brought into that layout. In groups, there are kernels for 4, 8, 16 and 32 channels.
- on the other cores: float32, and groups in contiguous layout.
- by Winograd's F(4x4, 3x3), which multiplies a fourth as often, after transforms that write and
  read tensors of 36 / 16 of the size of input and result. Published times are of cards without
  TF32, so others are not expected to use it.
- by PyTorch's kernels for single channels (depthwise), which take some taps a clock.

Constants are in `data/speed.toml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from oomdoctor.analysis.speed.memory_bound import RELAYING, clocks_per_s
from oomdoctor.analysis.speed.products import share_of_rate
from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import Filter, OpCost, element_bytes
from oomdoctor.records.job.machine import GpuFacts

_DATA = data_of("speed.toml")["convolutions"]
_CHANNELS: list[int] = _DATA["channels"]
_MULTIPLE: int = _DATA["multiple"]
_ONCE: list[str] = _DATA["reads_contiguous_1x1"]
_TAPS: dict[str, float] = _DATA["taps"]
_SLOTS: dict[str, float] = _DATA["slots"]
_CUDNN: dict[str, float] = _DATA["cudnn_over_native"]
_LEAST_ROWS, _LEAST_DEPTH = 8, 16  # of a product of tensor cores (mma.m16n8k16)
_TILE, _INNER = 16, 36  # elements of a tile of Winograd's results, and products for each
_TRANSFORMS = 2 * _INNER / _TILE  # written and read, of the bytes of input and result
_WARP, _IMAGES = 32, 8  # of PyTorch's kernel for the gradients of the weights of single channels
_HAS_TENSOR_CORES_FOR_MULTIPLES = ("7.0", "7.5")


@dataclass(frozen=True, slots=True)
class Rates:
    """What large products reach on a card in FLOP/s, in the type of a convolution.

    `tensor`: on tensor cores; None if there are none for the type. `plain`: on the others.
    """

    tensor: float | None
    plain: float | None


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of arithmetic, and bytes that are moved before or after it, on large streams."""

    seconds: float
    prepared_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the products of a convolution: a result, or a gradient.

    `rows`, `columns` and `depth` are those of each group; `relaid` are the elements that it reads
    of input and results.
    """

    name: str
    groups: int
    rows: int
    columns: int
    depth: int
    relaid: float


def convolution_time(cost: OpCost, gpu: GpuFacts, rates: Rates, bytes_per_s: float) -> Time | None:
    """What a convolution takes, each of its products by the fastest kernel.

    `cost` has a shape and a filter; `bytes_per_s` is what large streams reach. None if no rate is
    published for the only kernel that there is.
    """
    whole = Time(0.0)
    for part in _parts(cost):
        times = [*_ways(part, cost, gpu, rates)]
        if not times:
            return None
        best = min(times, key=lambda time: time.seconds + time.prepared_bytes / bytes_per_s)
        prepared = whole.prepared_bytes + best.prepared_bytes
        whole = Time(whole.seconds + best.seconds, prepared)
    return whole


def convolution_calls(cost: OpCost) -> int:
    """How many convolutions an operator is: one, or a gradient each of the input and weights."""
    if not cost.shape or "backward" not in cost.name:
        return 1
    groups, rows, columns, depth = cost.shape
    return 2 if cost.flops > 3 * groups * rows * columns * depth else 1  # of 2 FLOPs each


def untimed_group(cost: OpCost) -> int | None:
    """The channels of a group for which no rate is published; None for other operators.

    cuDNN has no kernel on tensor cores for them, and no published time says how fast its others are
    in channels-last layout.
    """
    if cost.filter is None or cost.shape[0] == 1 or not cost.filter.channels_last:
        return None
    channels = cost.shape[3] // cost.filter.taps
    return None if channels == 1 or channels in _CHANNELS else channels


def _parts(cost: OpCost) -> Iterator[_Part]:
    """The result; or the gradient of the weights, and of the input if it is wanted."""
    groups, rows, columns, depth = cost.shape
    assert cost.filter is not None
    each = cost.filter.stride**2
    channels = depth // cost.filter.taps
    source, made = float(groups * rows * each * channels), float(groups * rows * columns)
    if "backward" not in cost.name:
        yield _Part("forward", groups, rows, columns, depth, source)
        return
    yield _Part("weights", groups, columns, depth, rows, source + made)
    if convolution_calls(cost) == 2:
        inner = max(1, columns * cost.filter.taps // each)
        yield _Part("input", groups, rows * each, channels, inner, made)


def _ways(part: _Part, cost: OpCost, gpu: GpuFacts, rates: Rates) -> Iterator[Time]:
    assert cost.filter is not None
    groups, channels = cost.shape[0], cost.shape[3] // cost.filter.taps
    is_wide = cost.dtype == "float32"
    if groups > 1 and channels == 1:
        yield from _of_single_channels(part, cost, gpu, rates)
        return
    if rates.tensor is not None and _has_tensor_kernel(cost, gpu):
        yield _on_tensor_cores(part, cost, gpu, rates.tensor)
    if rates.plain is None or (cost.filter.channels_last and groups > 1):
        return
    # In 16 bits, cuDNN has kernels without tensor cores for what has none on them.
    if is_wide or rates.tensor is None or groups > 1 or not _has_tensor_kernel(cost, gpu):
        yield Time(_product_s(part, rates.plain, cost, gpu))
        if groups == 1 and not gpu.tf32_flops and not cost.filter.channels_last:
            yield from _winograd(part, cost, gpu, rates.plain)


def _has_tensor_kernel(cost: OpCost, gpu: GpuFacts) -> bool:
    assert cost.filter is not None
    groups, _, columns, depth = cost.shape
    channels = depth // cost.filter.taps
    if groups > 1:
        return channels == columns and channels in _CHANNELS
    needs = gpu.compute_capability in _HAS_TENSOR_CORES_FOR_MULTIPLES and cost.dtype == "float16"
    return not (needs and channels % _MULTIPLE)


def _on_tensor_cores(part: _Part, cost: OpCost, gpu: GpuFacts, rate: float) -> Time:
    assert cost.filter is not None
    seconds = _product_s(part, rate, cost, gpu)
    if part.groups > 1:  # a tile holds groups of 64 channels, each of which is padded
        channels = cost.shape[2]
        padded = max(_LEAST_ROWS / channels, 1) * max(_LEAST_DEPTH / channels, 1)
        whole = _Part(part.name, 1, part.rows, part.columns * part.groups, part.depth, part.relaid)
        if part.name == "weights":
            whole = _Part(part.name, 1, part.rows * part.groups, part.columns, part.depth, 0.0)
        seconds = _product_s(whole, rate, cost, gpu) * padded
    if cost.filter.channels_last or not cost.relaid_bytes:
        return Time(seconds)
    reads_as_it_is = cost.filter.taps == 1 and gpu.compute_capability in _ONCE
    if reads_as_it_is and part.name != "input":
        return Time(seconds)
    return Time(seconds, 2 * part.relaid * element_bytes(cost.dtype) / RELAYING)


def _product_s(part: _Part, rate: float, cost: OpCost, gpu: GpuFacts) -> float:
    shape = (part.groups, part.rows, part.columns, part.depth)
    flops = 2.0 * part.groups * part.rows * part.columns * part.depth
    return flops / (rate * share_of_rate(shape, element_bytes(cost.dtype), gpu.multiprocessors))


def _winograd(part: _Part, cost: OpCost, gpu: GpuFacts, rate: float) -> Iterator[Time]:
    assert cost.filter is not None
    if (cost.filter.taps, cost.filter.is_square, cost.filter.stride) != (9, True, 1):
        return
    _, rows, columns, depth = cost.shape
    tiles, channels = ceil(rows / _TILE), depth // cost.filter.taps
    sizes = {
        "forward": (tiles, columns, channels),
        "input": (tiles, channels, columns),
        "weights": (columns, channels, tiles),
    }
    inner = _Part(part.name, _INNER, *sizes[part.name], 0.0)
    moved = rows * (columns + channels) * element_bytes(cost.dtype)
    yield Time(_product_s(inner, rate, cost, gpu), _TRANSFORMS * moved)


def _of_single_channels(part: _Part, cost: OpCost, gpu: GpuFacts, rates: Rates) -> Iterator[Time]:
    """PyTorch's kernels, or cuDNN's where PyTorch calls them; those for channels-last only move."""
    assert cost.filter is not None
    clocks, slid = clocks_per_s(gpu), cost.filter
    if clocks is None or slid.channels_last:
        rate = rates.plain or rates.tensor
        if rate is not None:
            yield Time(2.0 * part.groups * part.rows * part.columns * part.depth / rate)
        return
    groups, rows, columns, taps = cost.shape
    if part.name == "weights":
        images = max(1, rows // slid.places)
        images = images if images < _IMAGES else _IMAGES * ceil(images / _IMAGES)
        work = groups * columns * taps * images * _WARP * ceil(slid.places / _WARP)
        slots = _SLOTS.get(gpu.compute_capability or "", _SLOTS["other"])
        seconds = work / (slots * clocks)
    else:
        work = groups * columns * taps * part.rows
        unrolled = slid.is_square and taps in (1, 9, 25)
        name = "input" if part.name == "input" else "unrolled" if unrolled else "others"
        seconds = work / (_TAPS[name] * clocks)
    if _calls_cudnn(cost, slid):
        seconds /= _CUDNN["forward" if part.name == "forward" else "backward"]
    yield Time(seconds)


def _calls_cudnn(cost: OpCost, slid: Filter) -> bool:
    """Whether PyTorch calls cuDNN for single channels in contiguous layout.

    ATen/native/Convolution.cpp, use_cudnn_depthwise and check_cudnn_depthwise_workload_with_filter.
    """
    groups, rows, _, taps = cost.shape
    side = {1: 1, 9: 3, 25: 5}.get(taps if slid.is_square else 0)
    if cost.dtype != "float16" or groups < 32 or side is None or slid.width < 7:
        return False
    if slid.stride == 1:
        return True
    if slid.stride != 2:
        return False
    images = rows // slid.places
    if side == 1:
        return groups >= 128 and images <= 16 and slid.width <= 7
    return images == 1 or groups >= 512 or (groups >= 256 and slid.width >= 28)
