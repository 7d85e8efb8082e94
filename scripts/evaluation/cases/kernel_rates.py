"""Published times of single kernels and layers, and what the operators in them cost.

The rows are those of tests/data/published_rates.jsonl that are not of training. Their operators are
counted as `plan` counts those of a step. A fused kernel (Triton, Liger, a compiled function) reads
its inputs and writes its results once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

from cases.case import LeftOut
from cases.rated import Judged
from cases.rates import NotExpressedError, Row, gpu_of, source_of
from oomdoctor.analysis.simulator.timing import time_uncertainty
from oomdoctor.analysis.speed.collectives import collective_s, sent_share
from oomdoctor.analysis.speed.links import host_link, links_of
from oomdoctor.analysis.speed.memory_bound import COMPILED, SUM_OVER_ROWS
from oomdoctor.analysis.speed.roofline import efficiency_of, estimate
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.costs import EstimatedTime, OpCost, OpKind
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.system.catalogue import speed_errors

Costs = list[tuple[OpCost, int]]
_SQUARE = 8192  # of a product whose size is not stated
_COPIED = 1 << 30  # bytes of a copy whose rate is published
_LINK_SPREAD = 0.5  # of an estimate of what links reach
_DTYPES = {"float8": "float8_e4m3fn", "fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn"}
_KINDS = {"elementwise": "memory-bound", "memcpy": "copy", "gemm": "product"}


def judged_kernels(rows: list[Row]) -> Iterator[Judged | LeftOut]:
    """Every kernel row with its predicted time, or why it has none."""
    for row in rows:
        if row["kind"] == "train":
            continue
        try:
            yield _judged(row)
        except NotExpressedError as error:
            yield LeftOut(row["id"], str(error))


def _judged(row: Row) -> Judged:
    gpu = gpu_of(row)
    if row["kind"] in ("memcpy", "collective"):
        predicted, measured, spread = _link_times(row, gpu)
    else:
        costs = _COSTS[row["kind"]](row)
        estimated = estimate(costs, gpu)
        if estimated is None:
            raise NotExpressedError("a peak of the card is not known")
        predicted, measured = estimated.device_s, _measured_s(row, costs)
        spread = time_uncertainty(_on_device(estimated), gpu, speed_errors())
    kind = _KINDS.get(row["kind"], row["kind"])
    if kind == "attention":
        kind = f"attention, {row['attention']}, {'backward' if _is_backward(row) else 'forward'}"
    return Judged(
        row["id"],
        kind,
        source_of(row),
        gpu.name,
        row.get("model", ""),
        row["trust"],
        predicted,
        measured,
        spread,
    )


def _on_device(estimated: EstimatedTime) -> EstimatedTime:
    """The estimate without its host: kernels are timed on the device."""
    return replace(estimated, seconds=estimated.device_s, host_s=0.0)


def _measured_s(row: Row, costs: Costs) -> float:
    if "step_s" in row and row["kind"] != "layer":
        return float(row["step_s"])
    if row["metric"] == "tflops" and row["kind"] != "layer":
        return sum(cost.flops * count for cost, count in costs) / (row["value"] * 1e12)
    return float(row["step_s"])


def _is_backward(row: Row) -> bool:
    return "bwd" in row["method"] or "backward" in row["method"]


def _dtype(row: Row) -> str:
    name = row["precision"]["weights"].split()[0]
    return _DTYPES.get(name, name)


def _item(dtype: str) -> float:
    return 1.0 if dtype.startswith("float8") else float(dtype_bytes(dtype))


def product(rows: int, columns: int, depth: int, dtype: str, name: str = "mm") -> OpCost:
    """One matrix product with a 16-bit result, unless its inputs are wider."""
    item = _item(dtype)
    moved = (rows + columns) * depth * item + rows * columns * max(item, 2.0)
    shape = (1, rows, columns, depth)
    return OpCost(name, "matmul", dtype, 2.0 * rows * columns * depth, moved, shape=shape)


def _products(row: Row) -> Costs:
    dtype = _dtype(row)
    shape = row.get("shape", dict.fromkeys("MNK", _SQUARE))
    rows, columns, depth = (shape[name] for name in "MNK")
    if "groups" not in shape:
        return [(product(rows, columns, depth, dtype), 1)]
    sizes = ((rows, columns, depth), (rows, depth, columns), (columns, depth, rows))
    costs: Costs = [(product(*size, dtype, "_grouped_mm"), 1) for size in sizes]
    if _item(dtype) == 1:  # the function casts all that it multiplies, once for each direction
        cast = rows * (columns + depth) + shape["groups"] * columns * depth
        costs.append((_moving("cast", cast, 3), 2))
    return costs


def _attention(row: Row) -> Costs:
    shape, dtype = row["shape"], _dtype(row)
    if "fwd+bwd" in row["method"]:
        raise NotExpressedError("it is not stated which passes were timed")
    if shape.get("sliding_window"):
        raise NotExpressedError("attention within a window")
    batch, heads = shape.get("batch", 4), shape.get("q_heads", 32)
    length, keys, width = shape["q_len"], shape["kv_len"], shape["head_dim_qk"]
    value = shape["head_dim_v"]
    causal = shape["mask"] in ("top_left", "bottom_right", "causal")
    pairs = batch * heads * length * keys / (2 if causal else 1)
    backward = _is_backward(row)
    flops = 2 * pairs * (3 * width + 2 * value if backward else width + value)
    moved = batch * heads * (length + keys) * (width + value) * _item(dtype)
    moved *= 2 if backward else 1
    kernel = "cudnn" if row["attention"] == "cudnn" else "flash"
    name = f"_scaled_dot_product_{kernel}_attention" + ("_backward" if backward else "")
    sizes = (batch * heads, length, keys, width, int(causal))
    return [(OpCost(name, "attention", dtype, flops, moved, shape=sizes), 1)]


def _memory_bound(row: Row) -> Costs:
    operation, _, phase = row["method"].rpartition(" ")
    fused = row["kernels"] in ("liger", "torch_compile")
    phases = {"full": ("forward", "backward"), "fwd": ("forward",), "bwd": ("backward",)}
    costs: Costs = []
    for each in phases.get(phase, (phase,)):
        costs += _operation(operation, each, fused, row)
    return costs


def _operation(operation: str, phase: str, fused: bool, row: Row) -> Costs:
    """The kernels of one pass of an operation."""
    shape, dtype = row["shape"], _dtype(row)
    item = _item(dtype)
    backward = phase == "backward"
    if operation in ("geglu", "swiglu"):
        return _gated(shape, dtype, backward, fused)
    if operation == "rope":
        return _rotation(shape, item, fused)
    size = _elements(operation, shape) * item
    name, passes = _PASSES[operation, phase]
    if fused and backward and operation.endswith("_norm"):
        # The gradients of a norm's weights need another kernel, which reads rows and gradients.
        sums = _moving(SUM_OVER_ROWS, size, 2, "irregular", "float32")
        return [(_moving(COMPILED, size, 3), 1), (sums, 1)]
    if fused:
        name, passes = COMPILED, 3 if backward else 2
    if operation == "cross_entropy":
        return _loss(size, backward, fused)
    if operation == "fused_add_rms_norm" and not fused:
        # transformers' norm: the sum, square and mean, two products; about twice as much back.
        regular = _moving("add", size, 3, dtype=dtype)
        broadcast = _moving("mul", size, 2, "irregular", dtype)
        mean = _moving("mean", size, 1, "irregular", dtype)
        return [(regular, 3 if backward else 1), (broadcast, 5 if backward else 3), (mean, 2)]
    return [(_moving(name, size, passes), 1)]


# Of operations that are one operator of PyTorch: its name, and how often a tensor of its input's
# size is read or written as `plan` counts it.
_PASSES = {
    ("rms_norm", "forward"): ("_fused_rms_norm", 2),
    ("rms_norm", "backward"): ("_fused_rms_norm_backward", 3),
    ("layer_norm", "forward"): ("native_layer_norm", 2),
    ("layer_norm", "backward"): ("native_layer_norm_backward", 3),
    ("group_norm", "forward"): ("native_group_norm", 2),
    ("group_norm", "backward"): ("native_group_norm_backward", 3),
    ("softmax", "forward"): ("_softmax", 2),
    ("softmax", "backward"): ("_softmax_backward_data", 3),
    ("cross_entropy", "forward"): ("_log_softmax", 2),
    ("cross_entropy", "backward"): ("_log_softmax_backward_data", 3),
    ("fused_add_rms_norm", "forward"): ("fused", 4),
    ("fused_add_rms_norm", "backward"): ("fused", 4),
}


def _elements(operation: str, shape: dict[str, Any]) -> float:
    if "rows" in shape:
        return float(shape["rows"] * shape["cols"])
    if operation == "cross_entropy":
        return float(prod(shape[name] for name in "BTV"))
    if operation == "group_norm":
        return float(prod(shape[name] for name in "MCH"))
    return float(shape["M"] * shape.get("N", shape.get("H", 0)))


def _moving(
    name: str, size: float, passes: float, kind: OpKind = "elementwise", dtype: str = "bfloat16"
) -> OpCost:
    return OpCost(name, kind, dtype, 0.0, size * passes)


def _loss(size: float, backward: bool, fused: bool) -> Costs:
    if fused:  # the gradient is made in the forward pass
        return [(_moving("fused", size, 1 if backward else 3), 1)]
    if not backward:
        return [(_moving("_log_softmax", size, 2), 1)]
    return [
        (_moving("nll_loss_backward", size, 1), 1),
        (_moving("_log_softmax_backward_data", size, 3), 1),
    ]


def _rotation(shape: dict[str, Any], item: float, fused: bool) -> Costs:
    """Queries and keys times cosines, plus their halves swapped times sines."""
    width = shape.get("hidden_size", shape.get("H"))
    tokens = shape.get("T", shape.get("seq_len"))
    size = tokens * width * (1 + shape["num_kv_heads"] / shape["num_q_heads"]) * item
    if fused:
        return [(_moving("fused", size, 2), 1)]
    return [
        (_moving("mul", size / 2, 2, "irregular"), 4),
        (_moving("neg", size / 2, 1, "irregular"), 2),
        (_moving("cat", size / 2, 2, "irregular"), 2),
        (_moving("add", size / 2, 3, "irregular"), 2),
    ]


def _gated(shape: dict[str, Any], dtype: str, backward: bool, fused: bool) -> Costs:
    """A feed-forward part with a gate: three products, an activation and a product."""
    tokens = int(shape.get("bsz", shape.get("B")) * shape["T"])
    width, inner = shape["hidden_size"], shape["intermediate_size"]
    size = tokens * inner * _item(dtype)
    if not backward:
        acts = (
            [(_moving("fused", size, 3), 1)]
            if fused
            else [(_moving("silu", size, 2), 1), (_moving("mul", size, 3), 1)]
        )
        return [
            (product(tokens, inner, width, dtype), 2),
            (product(tokens, width, inner, dtype), 1),
            *acts,
        ]
    acts = (
        [(_moving("fused", size, 5), 1)]
        if fused
        else [(_moving("mul", size, 3), 2), (_moving("silu_backward", size, 3), 1)]
    )
    return [
        (product(tokens, width, inner, dtype), 2),
        (product(tokens, inner, width, dtype), 1),
        (product(inner, width, tokens, dtype), 2),
        (product(width, inner, tokens, dtype), 1),
        (_moving("add", tokens * width * _item(dtype), 3), 1),
        *acts,
    ]


def _layer(row: Row) -> Costs:
    if row["group"] == "nanochat":
        raise NotExpressedError("one product or two: its source does not say")
    raise NotExpressedError("a layer whose operators are not recorded")


def _forward(_: Row) -> Costs:
    raise NotExpressedError("a forward pass alone, which is not predicted")


_COSTS: dict[str, Callable[[Row], Costs]] = {
    "gemm": _products,
    "attention": _attention,
    "elementwise": _memory_bound,
    "layer": _layer,
    "forward": _forward,
}


def _link_times(row: Row, gpu: GpuFacts) -> tuple[float, float, float]:
    """Seconds, predicted and published, of a copy of 1 GiB or of an all-reduce, and the spread."""
    rate = row["value"] * 1e9
    if row["kind"] == "collective":
        size = _bytes(row["shape"]["bytes"])
        links = links_of(gpu, row["n_gpus"], row["n_gpus"])
        assert links is not None
        sent = size * sent_share("all_reduce", row["n_gpus"])
        return collective_s("all_reduce", size, links), sent / rate, _LINK_SPREAD
    if "Stream" in row["method"]:
        efficiency = efficiency_of(gpu)
        assert efficiency is not None and gpu.bandwidth_bytes_per_s
        reached = efficiency.bandwidth * gpu.bandwidth_bytes_per_s
    elif "Host" in row["method"]:
        link = host_link(gpu)
        assert link is not None
        reached = link.bytes_per_s
    else:
        raise NotExpressedError("a copy between GPUs, which training does not make")
    return _COPIED / reached, _COPIED / rate, _LINK_SPREAD


def _bytes(text: str) -> float:
    return float(text[:-1]) * {"M": 1e6, "G": 1e9}[text[-1]]
