"""A result that was remembered is the one that torch's fake kernel gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from oomdoctor.analysis.simulator.recorded import Recorded
from oomdoctor.analysis.simulator.tape import in_canonical_order
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.simulating.device import mode
from oomdoctor.worker.simulating.device.fake import simulated_device
from oomdoctor.worker.simulating.device.mode import Remembered, of_this_process
from oomdoctor.worker.simulating.device.results import is_regular
from oomdoctor.worker.simulating.simulate import simulated_rung
from oomdoctor.worker.tracing.calls import OperatorCall
from tests.examples.tiny_models import tiny_job

aten = torch.ops.aten


def described(result: Any, inputs: list[torch.Tensor]) -> Any:
    """Everything about a result that a simulation can see, with the input whose memory it has."""
    if isinstance(result, tuple | list):
        return type(result).__name__, [described(item, inputs) for item in result]
    if not isinstance(result, torch.Tensor):
        return result
    assert type(result) is FakeTensor
    storage = result.untyped_storage()
    return (
        *(result.shape, result.stride(), result.storage_offset(), result.dtype, result.device),
        *(result.layout, result.requires_grad, result.is_contiguous(), storage.nbytes()),
        [i for i, tensor in enumerate(inputs) if tensor is result],
        [i for i, t in enumerate(inputs) if t.untyped_storage()._cdata == storage._cdata],
        str(torch._C._dispatch_key_set(result)),
        {name: value for name, value in vars(result).items() if name != "fake_mode"},
    )


Call = Callable[[torch.Tensor, torch.Tensor], Any]
CALLS: dict[str, Call] = {
    "product": lambda a, b: a @ b.t(),
    "transposed": lambda a, b: a.t(),
    "slice": lambda a, b: a[1:, 2:6],
    "row": lambda a, b: a[3],
    "reshaped": lambda a, b: a.t().reshape(-1),
    "view": lambda a, b: a.view(2, -1),
    "unsafe view": lambda a, b: aten._unsafe_view(a, [2, -1]),
    "expanded": lambda a, b: a[:1].expand(5, -1),
    "in place": lambda a, b: a.mul_(2),
    "into a slice": lambda a, b: a[2:].add_(b[2:]),
    "cast": lambda a, b: a.to(torch.bfloat16),
    "not cast": lambda a, b: a.to(torch.float32),
    "number": lambda a, b: a * 2.5,
    "whole number": lambda a, b: a // 2,
    "one": lambda a, b: torch.full_like(a, 1, dtype=torch.int64) * 1,
    "one as float": lambda a, b: torch.full_like(a, 1, dtype=torch.int64) * 1.0,
    "several": lambda a, b: torch.split(a, 3, dim=1),
    "statistics": lambda a, b: torch.var_mean(a, dim=-1),
    "normed": lambda a, b: aten.native_layer_norm(a, [8], None, None, 1e-5),
    "attention": lambda a, b: aten._scaled_dot_product_flash_attention(
        *(a.view(1, 2, 4, 8),) * 3, 0.0, True
    ),
    "list": lambda a, b: torch._foreach_add([a, b], 1.0),
    "list in place": lambda a, b: torch._foreach_mul_([a, b], 2.0),
    "norms": lambda a, b: torch._foreach_norm([a, b]),
    "joined": lambda a, b: torch.cat([a, b], dim=1),
    "made": lambda a, b: torch.zeros(3, 4, dtype=torch.float16),
    "made alike": lambda a, b: a.new_zeros(3),
    "scores": lambda a, b: torch.softmax(a, -1).sum(),
    "embedded": lambda a, b: torch.nn.functional.embedding(torch.zeros(5).long(), a),
    "loss": lambda a, b: torch.nn.functional.cross_entropy(a, torch.zeros(8).long()),
    "complex": lambda a, b: torch.view_as_complex(a.view(8, 4, 2)).conj(),
    "resized": lambda a, b: a.clone().resize_(3, 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_remembered_result_is_that_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, found = CALLS[name], []
    remembered = Remembered()
    with simulated_device(cuda=True, remembered=remembered):
        for _ in range(3):
            inputs = [torch.empty(8, 8), torch.empty(8, 8)]
            found.append(described(call(*inputs), inputs))
        assert remembered.kinds  # what follows is not remembered
        monkeypatch.setattr(mode, "is_regular", lambda _: False)
        inputs = [torch.empty(8, 8), torch.empty(8, 8)]
        from_torch = described(call(*inputs), inputs)
    assert found == [from_torch] * 3


VIEWS: dict[str, Call] = {
    "row": lambda a, b: a[3],
    "column": lambda a, b: a[:, 2],
    "last row": lambda a, b: a[-1],
    "slice": lambda a, b: a[1:, 2:6],
    "transposed": lambda a, b: a.t(),
    "strided": lambda a, b: a.as_strided((2, 3), (3, 1), 1),
    "other type": lambda a, b: a.view(torch.float16),
    "of the same type": lambda a, b: a[:, 2].to(torch.bfloat16),
    "gradient": lambda a, b: aten.select_backward(a[0], [8, 8], 0, 5),
    "put into": lambda a, b: aten.select_scatter(a, a[0], 0, 5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_begins_where_it_does_whatever_was_remembered(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same operator with other positions, on a tensor that begins elsewhere in its memory."""
    remembered = Remembered()
    with simulated_device(cuda=True, remembered=remembered):
        for call in VIEWS.values():
            call(torch.empty(8, 8), torch.empty(8, 8))
        first = aten.select.int(torch.empty(8, 8), 0, 0), aten.select.int(torch.empty(8, 8), 1, 0)
        assert [one.storage_offset() for one in first] == [0, 0]
        count = len(remembered.kinds)
        aten.select.int(torch.empty(8, 8), 0, 6)
        assert len(remembered.kinds) == count
        inputs = [torch.empty(9, 8)[1:], torch.empty(8, 8)]
        found = described(VIEWS[name](*inputs), inputs)
        monkeypatch.setattr(mode, "is_regular", lambda _: False)
        inputs = [torch.empty(9, 8)[1:], torch.empty(8, 8)]
        assert found == described(VIEWS[name](*inputs), inputs)


@pytest.mark.skipif(not hasattr(aten.addmm, "dtype"), reason="this torch has no such operator")
def test_a_sum_with_a_product_has_the_type_that_was_asked_for() -> None:
    with simulated_device(cuda=True):
        bias, one, other = torch.empty(5), torch.empty(4, 3), torch.empty(3, 5)
        halves = [tensor.bfloat16() for tensor in (bias, one, other)]
        result = aten.addmm.dtype(*halves, torch.float32)
        assert (result.shape, result.dtype) == ((4, 5), torch.float32)
        assert aten.addmm.dtype_out(*halves, torch.float32, out=result) is result


def test_results_of_the_same_shapes_have_memory_of_their_own() -> None:
    with simulated_device(cuda=True):
        tensor = torch.empty(4, 4)
        products = [tensor @ tensor for _ in range(3)]
        assert len({product.untyped_storage()._cdata for product in products}) == 3
        assert len({id(product.untyped_storage()) for product in products}) == 3


def test_views_of_a_copied_parameter_have_its_memory() -> None:
    with simulated_device(cuda=True):
        module = torch.nn.Linear(4, 8)
        copied = copy.deepcopy(module)
        assert copied.weight.fake_mode is module.weight.fake_mode
        for each in (copied, module):
            view = each.weight.t()
            assert view.untyped_storage()._cdata == each.weight.untyped_storage()._cdata


def test_a_known_value_is_not_taken_for_an_unknown_one() -> None:
    with simulated_device(cuda=True):
        unknown = torch.empty(())
        assert (unknown * 2).item() == 1.0  # any number does
        assert (torch.tensor(21.0) * 2).item() == 42.0
        assert (unknown * 2).item() == 1.0


def test_operators_that_depend_on_values_are_never_remembered() -> None:
    assert not is_regular(aten.nonzero.default)
    assert not is_regular(aten._local_scalar_dense.default)
    assert not is_regular(aten.index.Tensor)
    assert not is_regular(aten.lift_fresh.default)
    assert is_regular(aten.mm.default)


def test_results_that_share_memory_with_each_other_are_asked_for_again() -> None:
    remembered = Remembered()
    with simulated_device(cuda=True, remembered=remembered):
        aten.unbind.int(torch.empty(4, 4))
        kinds = [kind for key, kind in remembered.kinds.items() if key[0] is aten.unbind.int]
        assert [kind.result for kind in kinds] == [None]
        rows = aten.unbind.int(torch.empty(4, 4))
        assert len({row.untyped_storage()._cdata for row in rows}) == 1


def test_memory_is_bounded() -> None:
    remembered = Remembered(largest=10)
    with simulated_device(cuda=True, remembered=remembered):
        for size in range(1, 40):
            assert (torch.empty(size) + 1).shape == (size,)
            assert len(remembered.kinds) <= 10


class Seen:
    """Keeps the names of the operators that it sees."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def begins(self) -> None:
        self.names.append("begin")

    def note_operator(self, call: OperatorCall) -> None:
        self.names.append(call.func._schema.name)


def test_an_observer_sees_what_the_step_calls_and_not_what_a_fake_kernel_calls() -> None:
    seen = Seen()
    with simulated_device(cuda=True) as device:
        tensor = torch.empty(4, 4)
        with device.observed_by(seen):
            aten.native_layer_norm(tensor, [4], None, None, 1e-5)
            torch.zeros(3)
        torch.zeros(4)
    assert seen.names == ["begin", "aten::native_layer_norm", "begin", "aten::zeros"]


def test_an_observer_of_real_operators_sees_models_being_declared() -> None:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    seen = Seen()
    with simulated_device(cuda=True) as device, device.observed_by(seen):
        with device.real_too():
            torch.zeros(4)
            with unset_fake_temporarily():
                torch.empty(4)
        with unset_fake_temporarily():
            torch.empty(5)
    assert seen.names == ["begin", "aten::zeros", "begin", "aten::empty"]


def record(job: ProbeJob) -> list[Recorded]:
    with clean_slate(), simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        made = [recorder.record(size) for size in (1, 2, 5)]
    return [replace(recorded, tape=in_canonical_order(recorded.tape)) for recorded in made]


@pytest.mark.parametrize(
    "rung",
    [{}, pytest.param({"method": "lora", "autocast_dtype": "bfloat16"}, marks=pytest.mark.slow)],
)
def test_a_recording_does_not_depend_on_what_is_remembered(
    rung: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job("dense", **rung)
    job = replace(job, mode="simulate", simulation=SimulationRequest((2,), ()))
    of_this_process().kinds.clear()
    first, again = record(job), record(job)
    monkeypatch.setattr(mode, "is_regular", lambda _: False)
    assert first == again == record(job)
