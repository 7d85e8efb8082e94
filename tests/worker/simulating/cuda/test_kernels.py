"""Scratch against figures worked out by hand from the sources the rules name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.analysis.simulator.card import Card, RowSum
from oomdoctor.analysis.simulator.tape import TapeBlock
from oomdoctor.worker.simulating.cuda import kernel_reductions as reductions
from oomdoctor.worker.simulating.cuda.kernel_rules import steps_of
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import OTHERS, Freed, OnHost, Result, Step

A100, RTX_4090, H100, B200 = (8, 0), (8, 9), (9, 0), (10, 0)
MIB = 1024**2
aten = torch.ops.aten


def taken_of(steps: Sequence[Step]) -> tuple[int, ...]:
    return tuple(step for step in steps if isinstance(step, int))


class Recorder(TorchDispatchMode):
    """Keeps each operator's hidden blocks."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        self.hidden: dict[str, tuple[int, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        blocks = taken_of(steps_of(OperatorCall(func, args, kwargs, result), self.card))
        if blocks:
            self.hidden[func._schema.name] = blocks
        return result


@pytest.fixture
def fake() -> Any:
    with FakeTensorMode():
        yield


def blocks(func: Any, *args: Any, card: Card = A100, **kwargs: Any) -> tuple[Any, ...]:
    return taken_of(steps(func, *args, card=card, **kwargs))


def steps(func: Any, *args: Any, card: Card = A100, **kwargs: Any) -> tuple[Step, ...]:
    return steps_of(OperatorCall(func, args, kwargs, func(*args, **kwargs)), card)


@pytest.mark.parametrize("tokens", [3072, 3073])
def test_embedding_backward_keeps_rows_once_it_sorts(fake: None, tokens: int) -> None:
    grad = torch.empty(1, tokens, 64, dtype=torch.bfloat16)
    indices = torch.zeros(1, tokens, dtype=torch.long)
    found = steps(aten.embedding_dense_backward.default, grad, indices, 1000, -1, False)
    parts, index = 3073 // 10 + 1000, 8 * 3073
    sorting = [index, index, index, Freed(2), Result(0)]
    summing = [index, 8, index, Freed(5), index, index, 8, 8 * parts, 4 * 64 * parts]
    expected = [*sorting, *summing]
    if tokens == 3072:
        expected = [0 if isinstance(step, int) else step for step in expected]
    assert [_allocated(step) for step in found] == expected


def _allocated(step: Any) -> Any:
    if not isinstance(step, int):
        return step
    block = TapeBlock(step, "", rows=step.rows, segments=step.segments)  # type: ignore[attr-defined]
    return block.allocated


def test_embedding_backward_copies_what_is_strided(fake: None) -> None:
    grad = torch.empty(64, 100, dtype=torch.bfloat16).t()
    indices = torch.zeros(1, dtype=torch.long).expand(100)
    found = steps(aten.embedding_dense_backward.default, grad, indices, 1000, -1, False)
    assert found[:2] == (100 * 64 * 2, 800)
    assert found[5] == Freed(4)


def test_indices_that_are_no_flat_memory_are_copied(fake: None) -> None:
    table, rows = torch.empty(9, 4), torch.zeros(1, 6, dtype=torch.long)
    assert steps(aten.embedding.default, table, rows) == ()
    assert steps(aten.embedding.default, table, rows.expand(2, 6)) == (96, Result(0))
    assert steps(aten.index.Tensor, torch.empty(9, 6), [rows, rows[:, :1]]) == (48, Result(0))
    assert steps(aten.index.Tensor, torch.empty(9, 6), [rows, rows]) == ()


def test_an_infinite_number_is_found_by_its_absolute_value(fake: None) -> None:
    assert steps(aten.isinf.default, torch.empty(3)) == (12, Result(0))


def test_efficient_attention_keeps_its_seed_on_the_host(fake: None) -> None:
    rows = torch.empty(2, 4, 32, 64, dtype=torch.bfloat16)
    func = aten._scaled_dot_product_efficient_attention.default
    assert steps(func, rows, rows, rows, None, True) == (OnHost(2), OnHost(3))


def test_flash_attention_kept_its_seed_on_the_host_as_long_as_it_returned_one(fake: None) -> None:
    rows = torch.empty(2, 4, 32, 64, dtype=torch.bfloat16)
    func = aten._scaled_dot_product_flash_attention.default
    returned = {each.name for each in func._schema.returns}
    seeds = (OnHost(2), OnHost(3)) if "philox_seed" in returned else ()
    assert steps(func, rows, rows, rows) == seeds


def test_accumulating_index_put_sorts_and_a_plain_one_does_not(fake: None) -> None:
    target, index = torch.empty(50, 8), torch.zeros(20, dtype=torch.long)
    put = aten.index_put.default
    assert blocks(put, target, [index], torch.empty(20, 8), False) == ()
    assert blocks(put, target, [index], torch.empty(20, 8), True) == (160, 160, 160, 160, 320)
    expanded = torch.empty(1, 8).expand(20, 8)
    assert blocks(put, target, [index], expanded, True)[0] == 20 * 8 * 4


@pytest.mark.parametrize(
    ("release", "expected"),
    # As many partial sums for each as the largest one has; then a table of 64-bit places as well.
    [((2, 14), (4 * 2 * 4,)), ((2, 15), (8 * 3, (4 + 1) * 4))],
)
def test_foreach_norm_has_partial_sums_for_each_tensor(
    fake: None, monkeypatch: pytest.MonkeyPatch, release: tuple[int, int], expected: tuple[int, ...]
) -> None:
    monkeypatch.setattr(reductions, "torch_release", lambda: release)
    tensors = [torch.empty(n, dtype=torch.bfloat16) for n in (65536 * 3 + 1, 10, 0)]
    assert blocks(aten._foreach_norm.Scalar, tensors) == expected


def test_a_sum_over_rows_leaves_partial_sums_for_the_card_to_size(fake: None) -> None:
    rows = torch.empty(4, 512, 576, dtype=torch.bfloat16)
    buffer, semaphores = blocks(aten.sum.dim_IntList, rows, [0, 1], True)
    assert buffer.row_sum == RowSum(576, 2048, 4, 2, 4)
    assert semaphores.row_sum == RowSum(576, 2048, 4, 2, 4, semaphores=True)
    assert blocks(aten.mean.dim, rows[:, :, :3], [0, 1])[0].row_sum.vector == 1
    assert blocks(aten.mean.dim, rows.float(), [-2])[0].row_sum == RowSum(2304, 512, 4, 4, 4)


def test_a_sum_along_rows_and_one_to_a_number_leave_nothing(fake: None) -> None:
    rows = torch.empty(512, 576)
    assert blocks(aten.mean.dim, rows, [-1], True) == ()
    assert blocks(aten.sum.dim_IntList, rows, [0, 1]) == ()
    assert blocks(aten.sum.default, rows) == ()


def test_truths_are_made_whole_numbers_before_they_are_counted(fake: None) -> None:
    assert blocks(aten.sum.default, torch.empty(100, dtype=torch.bool)) == (800,)
    assert blocks(aten.sum.default, torch.empty(100, dtype=torch.int64)) == ()


@pytest.mark.parametrize(
    ("batch", "length", "dim", "splits"),
    # The first as the emulated A100 has it for Qwen2.5-VL's vision encoder: 8 heads of 80.
    [(1, 1024, 80, 3), (2, 1024, 80, 1), (1, 1024, 64, 4), (1, 128, 80, 1)],
)
def test_keys_are_split_for_few_queries(batch: int, length: int, dim: int, splits: int) -> None:
    flash = aten._scaled_dot_product_flash_attention.default
    with FakeTensorMode():
        query = torch.empty(batch, 8, length, dim, dtype=torch.bfloat16)
        found = blocks(flash, query, query, query)
        assert blocks(flash, query, query, query, 0.1) == ()
    sums = 4 * splits * batch * 8 * length
    assert found == (() if splits == 1 else (sums, sums * -(-dim // 32) * 32))


def test_a_layer_norm_copies_what_is_not_contiguous(fake: None) -> None:
    states = torch.empty(2, 384, 1500).transpose(1, 2)  # Whisper's, behind its convolutions
    weight, size = torch.empty(384), 4 * 2 * 384 * 1500
    assert blocks(aten.native_layer_norm.default, states, [384], weight, weight, 1e-5) == (size,)
    flat = states.contiguous()
    assert blocks(aten.native_layer_norm.default, flat, [384], weight, weight, 1e-5) == ()
    one = torch.empty(2, 1500, 1)
    back = aten.native_layer_norm_backward.default
    every = (weight, weight, [True] * 3)
    assert blocks(back, flat, states, [384], one, one, *every) == (size,)
    assert steps(back, states, flat, [384], one, one, *every) == (Result(OTHERS), size)
    both = steps(back, states, states, [384], one, one, *every)
    assert both == (size, Result(OTHERS), size)


def test_a_convolution_of_sound_copies_what_is_not_contiguous(fake: None) -> None:
    """As in wav2vec2's encoders with layer norms, where channels are last: torch's own order."""
    weight = torch.empty(256, 512, 3, dtype=torch.bfloat16)
    sound = torch.empty(1, 4096, 512, dtype=torch.bfloat16).transpose(1, 2)
    made = torch.empty(1, 2047, 256, dtype=torch.bfloat16).transpose(1, 2)
    how = ([2], [0], [1], False, [0], 1)
    forward, back = aten.convolution.default, aten.convolution_backward.default
    assert steps(forward, sound, weight, None, *how) == (4096 * 512 * 2, Result(OTHERS))
    assert steps(forward, sound.contiguous(), weight, None, *how) == ()
    every = (weight, [0], *how, [True, True, False])
    copies = (4096 * 512 * 2, 2047 * 256 * 2)
    assert steps(back, made, sound, *every) == (*copies, Result(OTHERS))
    assert steps(back, made, sound.contiguous(), *every) == (copies[1], Result(OTHERS))


def test_a_maximum_is_of_flat_memory(fake: None) -> None:
    tensor = torch.empty(4, 6)
    assert blocks(aten.max.default, tensor) == blocks(aten.max.dim, tensor.t(), 0) == ()
    assert blocks(aten.max.default, tensor.t()) == blocks(aten.min.default, tensor.t()) == (96,)


def test_a_running_sum_is_of_whole_numbers(fake: None) -> None:
    assert blocks(aten.cumsum.default, torch.empty(100, dtype=torch.bool), 0) == (800,)
    assert blocks(aten.cumsum.default, torch.empty(100, dtype=torch.int64), 0) == ()
    assert blocks(aten.cumsum.default, torch.empty(100), 0) == ()


def test_a_mask_becomes_the_places_of_its_elements() -> None:
    tensor, mask, chosen = torch.rand(2, 8, 4), torch.zeros(2, 8, dtype=torch.bool), 3
    mask[0, :chosen] = True
    places = 8 * chosen * mask.dim()

    read = steps(aten.index.Tensor, tensor, [mask])
    put = steps(aten.index_put.default, tensor, [mask], torch.ones(chosen, 4), True)

    assert taken_of(read)[2] == taken_of(put)[2] == places
    assert read[-1] == Result(0)
    assert taken_of(put)[-4:] == (8 * chosen,) * 4
    assert blocks(aten.index_put.default, tensor, [mask], torch.ones(chosen, 4)) == ()
    scattered = blocks(aten.masked_scatter.default, torch.zeros(2, 8), mask, torch.ones(chosen))
    assert scattered[0] == 8 * mask.numel()
    wide = blocks(aten.masked_scatter.default, tensor, mask[..., None], torch.ones(4 * chosen))
    assert wide[:2] == (8 * tensor.numel(), tensor.numel())


def test_a_matrix_that_cublas_cannot_read_is_copied(fake: None) -> None:
    a, b = torch.empty(4, 6), torch.empty(6, 8)
    assert blocks(aten.mm.default, a, b) == ()
    assert blocks(aten.mm.default, a.t().contiguous().t(), b) == ()
    assert blocks(aten.mm.default, torch.empty(1, 1).expand(4, 6), b) == (4 * 6 * 4,)


def test_unknown_operators_have_no_scratch(fake: None) -> None:
    assert blocks(aten.add.Tensor, torch.empty(4), torch.empty(4)) == ()


def test_a_4_bit_product_dequantises_the_weight_inside_the_operator() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    if not hasattr(torch.ops.bitsandbytes, "gemm_4bit"):
        pytest.skip(f"bitsandbytes {bitsandbytes.__version__} dequantises in view of the trace")
    gemm = torch.ops.bitsandbytes.gemm_4bit.default
    with FakeTensorMode():
        packed = torch.empty(64 * 128 // 2, 1, dtype=torch.uint8)
        constants = torch.empty(128)
        for tokens, expected in ((4, ()), (5, (64 * 128 * 2,))):
            a = torch.empty(1, tokens, 128, dtype=torch.bfloat16)
            assert blocks(gemm, a, packed, [64, 128], constants, 64, "nf4") == expected


def test_4_bit_constants_are_made_before_the_packed_values() -> None:
    pytest.importorskip("bitsandbytes")
    with FakeTensorMode():
        weight = torch.empty(64, 128, dtype=torch.bfloat16)
        quantize = torch.ops.bitsandbytes.quantize_4bit.default
        found = steps(quantize, weight, 64, "nf4", torch.uint8)
    assert found == (Result(1), Result(0))


def test_an_int8_product_is_int32_first() -> None:
    pytest.importorskip("bitsandbytes")
    product = torch.ops.bitsandbytes.int8_scaled_mm.default
    with FakeTensorMode():
        a, b = torch.empty(3, 16, dtype=torch.int8), torch.empty(8, 16, dtype=torch.int8)
        assert blocks(product, a, b, torch.empty(3), torch.empty(8)) == (4 * 24,)
        found = blocks(product, a, b, torch.empty(3), torch.empty(8), dtype=torch.bfloat16)
        assert found == (4 * 24, 2 * 24)
