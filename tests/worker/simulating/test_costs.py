"""FLOPs and bytes of operators, by hand, as a dispatch mode sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.records.codec import from_json, to_json
from oomdoctor.records.job.costs import TF32, Filter, OpCost
from oomdoctor.worker.simulating.costs import cost_of
from oomdoctor.worker.tracing.calls import OperatorCall

BF16 = torch.bfloat16


class Recording(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    @property
    def costs(self) -> list[OpCost]:
        return [cost for call in self.calls if (cost := cost_of(OperatorCall(*call))) is not None]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs, result))
        return result


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def only(function: Any, *args: Any, **kwargs: Any) -> OpCost:
    """The one cost of a call under fake tensors; `args` are shapes, tensors or values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [empty(*a) if isinstance(a, tuple) else a for a in args]
        with Recording() as seen:
            function(*tensors, **kwargs)
    assert len(seen.costs) == 1, seen.costs
    return seen.costs[0]


def test_a_product() -> None:
    cost = only(torch.mm, (64, 32), (32, 16))
    flops, moved = 2.0 * 64 * 32 * 16, 2.0 * (2048 + 512 + 1024)
    assert cost == OpCost("mm", "matmul", "bfloat16", flops, moved, shape=(1, 64, 16, 32))


def test_a_product_with_a_bias_reads_it_too() -> None:
    cost = only(torch.addmm, (16,), (64, 32), (32, 16))
    assert cost.flops == 2 * 64 * 32 * 16
    assert cost.bytes_moved == 2 * (16 + 2048 + 512 + 1024)


def test_a_batched_product() -> None:
    batched = only(torch.bmm, (4, 8, 16), (4, 16, 32))
    assert (batched.flops, batched.shape) == (2 * 4 * 8 * 16 * 32, (4, 8, 32, 16))


def test_a_convolution_is_a_product_whose_rows_are_places() -> None:
    image, weight = (2, 16, 32, 32), (8, 16, 4, 4)
    cost = only(torch.nn.functional.conv2d, image, weight, stride=4)
    assert cost.shape == (1, 2 * 8 * 8, 8, 16 * 4 * 4)
    assert cost.relaid_bytes == 2 * 2 * (2 * 16 * 32 * 32)  # read and written


def test_a_convolution_in_channels_last_layout_is_not_relaid() -> None:
    with FakeTensorMode():
        image = empty(2, 16, 32, 32).contiguous(memory_format=torch.channels_last)
    cost = only(torch.nn.functional.conv2d, image, (8, 16, 4, 4))
    assert cost.relaid_bytes == 0
    assert cost.filter == Filter(16, True, 1, 32, 29 * 29, channels_last=True)


def test_the_cost_of_a_convolution_is_read_as_it_was_written() -> None:
    cost = only(torch.nn.functional.conv2d, (2, 16, 32, 32), (8, 16, 4, 4), stride=4)
    assert from_json(OpCost, json.loads(json.dumps(to_json(cost)))) == cost


def test_a_convolution_in_groups_is_a_product_of_each() -> None:
    grouped = only(torch.nn.functional.conv2d, (2, 16, 32, 32), (32, 4, 3, 5), groups=4, stride=2)
    assert grouped.shape == (4, 2 * 15 * 14, 8, 4 * 15)
    assert grouped.filter == Filter(15, False, 2, 32, 15 * 14, channels_last=False)
    rows = only(torch.nn.functional.conv1d, (2, 16, 32), (16, 1, 4), groups=16)
    assert (rows.shape, rows.filter) == (
        (16, 2 * 29, 1, 4),
        Filter(4, False, 1, 32, 29, channels_last=False),
    )


def test_the_backward_pass_of_a_convolution_reads_its_gradient_twice() -> None:
    image, weight, gradient = (2, 16, 32, 32), (8, 16, 3, 3), (2, 8, 30, 30)
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    cost = only(torch.ops.aten.convolution_backward, gradient, image, weight, *rest)
    assert cost.shape == (1, 2 * 30 * 30, 8, 16 * 9)
    assert cost.relaid_bytes == 2 * 2 * (2 * (2 * 8 * 30 * 30) + 2 * 16 * 32 * 32)


@pytest.mark.parametrize(("setting", "on"), [("allow_tf32", True), ("fp32_precision", "tf32")])
def test_float32_products_are_in_tf32_if_torch_is_told_so(setting: str, on: object) -> None:
    products = torch.backends.cuda.matmul
    if not hasattr(products, setting):
        pytest.skip("this torch has no such setting")
    left, right = (empty(8, 8, dtype=torch.float32) for _ in range(2))
    assert only(torch.mm, left, right).dtype == "float32"
    before = getattr(products, setting)
    setattr(products, setting, on)
    try:
        assert only(torch.mm, left, right).dtype == TF32
        assert only(torch.mm, (8, 8), (8, 8)).dtype == "bfloat16"
        assert only(torch.add, left, right).dtype == "float32"
    finally:
        setattr(products, setting, before)
    assert only(torch.mm, left, right).dtype == "float32"


@pytest.mark.parametrize(("groups", "transposed"), [(1, False), (4, False), (16, False), (4, True)])
@pytest.mark.parametrize("wanted", [(True, True), (False, True)])
def test_a_convolution_in_groups_costs_no_more_backward(
    groups: int, transposed: bool, wanted: tuple[bool, bool]
) -> None:
    call = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    weight = (16, 16 // groups, 3, 3)
    forward = only(call, (2, 16, 8, 8), weight, groups=groups, padding=1)
    image, gradient = empty(2, 16, 8, 8), empty(2, 16, 8, 8)
    rest = (None, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups, [*wanted, False])
    cost = only(torch.ops.aten.convolution_backward, gradient, image, weight, *rest)
    assert cost.flops == sum(wanted) * forward.flops


def test_a_convolution_and_its_stride() -> None:
    cost = only(torch.nn.functional.conv2d, (2, 3, 32, 32), (8, 3, 4, 4), stride=4)
    assert cost.kind == "conv"
    assert cost.flops == 2 * (2 * 8 * 8) * 8 * (3 * 4 * 4)


@pytest.mark.parametrize(
    ("left", "right"), [((96, 16), (4, 16, 32)), ((16, 96), (96, 32)), ((4, 96, 16), (16, 32))]
)
def test_grouped_products_share_the_rows_out(left: Any, right: Any) -> None:
    if not hasattr(torch.ops.aten, "_grouped_mm"):
        pytest.skip("this PyTorch has no grouped products")
    grouped = torch.ops.aten._grouped_mm.default
    with FakeTensorMode():
        args = (empty(*left), empty(*right))
        cost = cost_of(OperatorCall(grouped, args, {}, empty(96, 32)))
    assert cost is not None
    assert (cost.kind, cost.flops) == ("matmul", 2 * 96 * 16 * 32)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.view(-1),
        lambda x: x[2:],
        lambda x: x.expand(3, 8, 8),
        lambda x: x.detach(),
        lambda x: torch.ops.aten._unsafe_view(x, [64]),
        lambda x: torch.empty_like(x),
        lambda x: x.resize_(64),
    ],
)
def test_views_and_empty_storage_cost_nothing(view: Any) -> None:
    with FakeTensorMode():
        x = empty(8, 8)
        with Recording() as seen:
            view(x)
    assert seen.costs == []
    assert seen.calls


def test_a_value_read_on_the_host_costs_nothing() -> None:
    value = torch.ones(())
    with Recording() as seen:
        value.item()
    assert [str(call[0]) for call in seen.calls] == ["aten._local_scalar_dense.default"]
    assert seen.costs == []


def test_elementwise_reads_its_inputs_and_writes_its_output() -> None:
    cost = only(torch.add, (100,), (100,))
    assert (cost.kind, cost.flops, cost.bytes_moved) == ("elementwise", 0.0, 600.0)


def test_in_place_reads_and_writes_its_target() -> None:
    assert only(lambda a, b: a.add_(b), (100,), (100,)).bytes_moved == 600
    assert only(lambda a: a.mul_(2), (100,)).bytes_moved == 400


def test_overwriting_does_not_read() -> None:
    assert only(lambda a, b: a.copy_(b), (100,), (100,)).bytes_moved == 400
    assert only(lambda a: a.zero_(), (100,)).bytes_moved == 200
    assert only(torch.zeros_like, (100,)).bytes_moved == 200
    assert only(lambda a, o: torch.mul(a, 2, out=o), (100,), (100,)).bytes_moved == 400


def test_a_cast_counts_both_sizes_of_elements() -> None:
    cost = only(lambda a: a.float(), (100,))
    assert (cost.kind, cost.bytes_moved) == ("irregular", 600.0)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda a: a * 2, "elementwise"),
        (lambda a: a * a, "elementwise"),
        (lambda a: torch.softmax(a, -1), "elementwise"),
        (lambda a: a * a[0], "irregular"),
        (lambda a: a * a.t(), "irregular"),
        (lambda a: a.t().neg(), "elementwise"),  # its result has the same strides
        (lambda a: a[:, ::2].neg(), "irregular"),
        (lambda a: a[:, :4].neg(), "irregular"),
        (lambda a: a.t().clone(memory_format=torch.contiguous_format), "irregular"),
        (lambda a: a.float(), "irregular"),
        (lambda a: a.mean(-1, keepdim=True), "irregular"),
        (lambda a: a.copy_(a.clone().float()), "irregular"),
    ],
)
def test_only_tensors_that_are_alike_are_walked_in_step(call: Any, kind: str) -> None:
    with FakeTensorMode():
        tensor = empty(8, 8)
        with Recording() as seen:
            call(tensor)
    assert seen.costs[-1].kind == kind


def test_lists_of_tensors_are_walked_each_by_itself() -> None:
    with FakeTensorMode():
        tensors = [empty(100), empty(50)]
        cost = cost_of(OperatorCall(torch.ops.aten._foreach_mul_.Scalar, (tensors, 2.0), {}, None))
    assert cost is not None
    assert cost.kind == "elementwise"


def test_a_copy_between_devices_is_told_from_a_cast() -> None:
    with FakeTensorMode():
        host = empty(100)
        device = torch.empty(100, dtype=BF16, device="meta")
        to_copy, copy_ = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default
        kinds = [
            cost_of(OperatorCall(to_copy, (host,), {"device": "meta"}, device)),
            cost_of(OperatorCall(copy_, (device, host), {}, device)),
            cost_of(OperatorCall(copy_, (host, host), {}, host)),
        ]
    assert [cost.kind for cost in kinds if cost] == ["copy", "copy", "elementwise"]


def test_gathers_read_only_what_they_return() -> None:
    tokens = torch.zeros(10, dtype=torch.int64)
    cost = only(torch.nn.functional.embedding, tokens, (50000, 64))
    assert cost.bytes_moved == 10 * 8 + 2 * (10 * 64 * 2)
    assert only(lambda a: torch.ops.aten.index(a, [tokens]), (50000, 64)).bytes_moved == 2640


def test_scatters_touch_only_what_they_write() -> None:
    rows = torch.zeros(10, dtype=torch.int64)
    cost = only(lambda a, b: a.index_add_(0, rows, b), (50000, 64), (10, 64))
    assert cost.bytes_moved == 10 * 8 + 3 * (10 * 64 * 2)


def test_the_loss_picks_single_scores() -> None:
    labels = torch.zeros(10, dtype=torch.int64)
    picked = only(lambda a: torch.ops.aten.nll_loss_forward(a, labels, None, 1, -100), (10, 50000))
    assert picked.bytes_moved < 200


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [8, 2])
def test_attention_forward_and_backward(causal: bool, key_heads: int) -> None:
    pairs = 2 * 8 * 128 * 128 // (2 if causal else 1)
    with FakeTensorMode():
        query = empty(2, 8, 128, 32).requires_grad_()
        key, value = (empty(2, key_heads, 128, 32).requires_grad_() for _ in range(2))
        with Recording() as seen:
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=True
            )
            out.sum().backward()
    found = [cost for cost in seen.costs if cost.kind == "attention"]
    if key_heads < 8 and "bmm" in {cost.name for cost in seen.costs}:
        pytest.skip("this PyTorch has no kernel for grouped queries on the CPU")
    assert [cost.flops for cost in found] == [2 * pairs * (32 + 32), 2 * pairs * 5 * 32]
    assert found[1].bytes_moved > found[0].bytes_moved > 0
    assert {cost.shape for cost in found} == {(16, 128, 128, 32, int(causal))}


def test_attention_kernels_of_cuda_have_the_same_flops() -> None:
    attention = torch.ops.aten._scaled_dot_product_efficient_attention.default
    with FakeTensorMode():
        q = empty(2, 8, 128, 32)
        masked = cost_of(OperatorCall(attention, (q, q, q, empty(2, 8, 128, 128), True), {}, (q,)))
        causal = cost_of(
            OperatorCall(attention, (q, q, q, None, True, 0.0), {"is_causal": True}, (q,))
        )
    assert masked is not None
    assert causal is not None
    assert masked.flops == 2 * causal.flops == 4 * 2 * 8 * 128 * 128 * 32
    assert masked.bytes_moved - causal.bytes_moved == 2 * 8 * 128 * 128 * 2


def test_lists_add_up() -> None:
    add = torch.ops.aten._foreach_add_.List
    with FakeTensorMode():
        a, b = [empty(100), empty(50)], [empty(100), empty(50)]
        cost = cost_of(OperatorCall(add, (a, b), {}, None))
        parts = cost_of(OperatorCall(torch.ops.aten.cat.default, (a,), {}, empty(150)))
    assert cost is not None
    assert cost.bytes_moved == 150 * 2 * 3
    assert parts is not None
    assert parts.bytes_moved == 150 * 2 * 2


def test_a_fused_optimizer_reads_gradients_and_updates_the_rest() -> None:
    with FakeTensorMode():
        parameter = torch.nn.Parameter(empty(100))
        parameter.grad = empty(100)
        optimizer = torch.optim.AdamW([parameter], fused=True)
        with Recording() as seen:
            optimizer.step()
    fused = next(cost for cost in seen.costs if cost.name == "_fused_adamw_")
    assert fused.kind == "elementwise"
    assert fused.bytes_moved == 200 + 3 * 400 + 4  # gradient, three tensors twice, step counter


def test_costs_are_affine_in_the_batch() -> None:
    def totals(batch: int) -> tuple[float, float]:
        with FakeTensorMode():
            layer, norm = torch.nn.Linear(64, 32), torch.nn.LayerNorm(32)
            with Recording() as seen:
                norm(layer(torch.empty(batch, 16, 64))).sum().backward()
        return sum(c.flops for c in seen.costs), sum(c.bytes_moved for c in seen.costs)

    one, two, four = totals(1), totals(2), totals(4)
    assert four == tuple(a + 3 * (b - a) for a, b in zip(one, two, strict=True))


def bitsandbytes_op(name: str) -> Any:
    pytest.importorskip("bitsandbytes")
    if not hasattr(torch.ops.bitsandbytes, name):
        pytest.skip(f"this bitsandbytes has no {name}")
    return getattr(torch.ops.bitsandbytes, name).default


def test_dequantisation_reads_packed_bytes() -> None:
    dequantise = bitsandbytes_op("dequantize_4bit")
    with FakeTensorMode():
        packed, scales = empty(2048, 1, dtype=torch.uint8), empty(64, dtype=torch.float32)
        args = (packed, scales, 64, "nf4", [64, 64], BF16)
        cost = cost_of(OperatorCall(dequantise, args, {}, empty(64, 64)))
    assert cost == OpCost("dequantize_4bit", "quantised", "uint8", 0.0, 2048 + 256 + 8192)


def test_a_4_bit_product_multiplies_by_the_unpacked_shape() -> None:
    product = bitsandbytes_op("gemv_4bit")
    with FakeTensorMode():
        packed, scales = empty(1024, 1, dtype=torch.uint8), empty(32, dtype=torch.float32)
        args = (empty(1, 64), packed, [32, 64], scales, empty(16, dtype=torch.float32), 64)
        cost = cost_of(OperatorCall(product, args, {}, empty(1, 32)))
    assert cost is not None
    assert (cost.kind, cost.flops) == ("quantised", 2 * 64 * 32)


@pytest.mark.parametrize(("rows", "dtype"), [(8, BF16), (4096, BF16), (8, torch.float32)])
def test_a_4_bit_product_unpacks_its_weight_whatever_the_rows(rows: int, dtype: Any) -> None:
    product = bitsandbytes_op("gemm_4bit")
    with FakeTensorMode():
        packed, scales = empty(1024, 1, dtype=torch.uint8), empty(32, dtype=torch.float32)
        args = (empty(rows, 64, dtype=dtype), packed, [32, 64], scales, 64, "nf4")
        cost = cost_of(OperatorCall(product, args, {}, empty(rows, 32, dtype=dtype)))
    assert cost is not None
    assert cost.flops == 2 * rows * 64 * 32
    assert cost.unpacked_bytes == 32 * 64 * (0.5 + dtype.itemsize)


def test_an_int8_product() -> None:
    product = bitsandbytes_op("int8_linear_matmul")
    with FakeTensorMode():
        args = (empty(10, 64, dtype=torch.int8), empty(32, 64, dtype=torch.int8))
        cost = cost_of(OperatorCall(product, args, {}, empty(10, 32, dtype=torch.int32)))
    assert cost == OpCost(
        *("int8_linear_matmul", "matmul", "int8", 2 * 10 * 64 * 32, 640 + 2048 + 1280),
        shape=(1, 10, 32, 64),
    )


def test_an_8_bit_optimizer_reads_and_writes_one_byte_a_state() -> None:
    update = bitsandbytes_op("optimizer_update_8bit_blockwise")
    with FakeTensorMode():
        gradient, parameter = empty(512), empty(512)
        first, second = (empty(512, dtype=torch.uint8) for _ in range(2))
        code, scale = empty(256, dtype=torch.float32), empty(2, dtype=torch.float32)
        moments = (0.9, 0.999, 0.0, 0.0, 1e-8, 1, 1e-3)
        args = ("adam", gradient, parameter, first, second, *moments, code, code, scale, scale)
        cost = cost_of(OperatorCall(update, (*args, 0.0, 1.0), {}, None))
    assert cost is not None
    assert cost.kind == "elementwise"
    states = 1024 + 2 * 1024 + 2 * 512 + 2 * 512
    assert states <= cost.bytes_moved <= states + 4 * 2 * (256 + 2) * 2
