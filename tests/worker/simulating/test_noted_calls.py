"""Costs of calls that the emulated device noted are those of a simulated step."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.worker.simulating.costs import cost_of
from oomdoctor.worker.simulating.noted_calls import costs_of
from oomdoctor.worker.tracing.calls import OperatorCall

_NAMES = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.int64: "Long"}


class Noting(TorchDispatchMode):  # type: ignore[misc]
    """Notes each operator as native/values_calls.cpp does, and what it costs here."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.costs: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        call = OperatorCall(func, args, given, result)
        names = [argument.name for argument in func._schema.arguments]
        results = list(result) if isinstance(result, tuple) else [result]
        values = {"args": [call.argument(name) for name in names], "results": results}
        noted = {key: list(map(_noted, of)) for key, of in values.items()}
        self.lines.append(json.dumps({"schema": str(func._schema), **noted}))
        self.costs.append(cost_of(call))
        return result


def _noted(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes, strides = list(value.shape), list(value.stride())
        return {"dtype": _NAMES[value.dtype], "cuda": False, "sizes": sizes, "strides": strides}
    if isinstance(value, list | tuple):
        return [_noted(each) for each in value]
    return value if isinstance(value, bool | int | float) else None


def test_noted_calls_cost_what_the_same_operators_cost_in_a_simulated_step() -> None:
    net = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16), torch.nn.SiLU())
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    with Noting() as noting:
        query = net(torch.arange(12).reshape(2, 6)).reshape(2, 6, 2, 8).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        torch.nn.functional.layer_norm(attended.float(), (8,)).pow(2).mean().backward()
        optimizer.step()
    told = costs_of(noting.lines)
    assert told == noting.costs
    kinds = {cost.kind for cost in told if cost is not None}
    assert {"matmul", "attention", "elementwise", "irregular"} <= kinds


def test_a_call_that_cannot_be_read_has_no_cost() -> None:
    lines = ['{"schema": "no schema", "args": [], "results": []}']
    lines.append('{"schema": "their::op(Tensor x) -> Tensor", "args": [null], "results": [null]}')
    broken, theirs = costs_of(lines)
    assert broken is None
    assert theirs is None or not theirs.bytes_moved


def test_an_operator_that_is_not_loaded_costs_the_bytes_of_its_tensors() -> None:
    tensor = {"dtype": "BFloat16", "cuda": True, "sizes": [4, 8], "strides": [8, 1]}
    line = {"schema": "their::op(Tensor x, float y) -> Tensor", "args": [tensor, 0.0]}
    (cost,) = costs_of([json.dumps({**line, "results": [tensor]})])
    assert cost is not None
    assert (cost.name, cost.kind, cost.bytes_moved) == ("op", "elementwise", 2 * 4 * 8 * 2)


def test_a_copy_between_host_and_card_is_a_copy() -> None:
    sizes = {"dtype": "Float", "sizes": [4], "strides": [1]}
    schema = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
    here, there = {**sizes, "cuda": False}, {**sizes, "cuda": True}
    line = {"schema": schema, "args": [there, here, False], "results": [there]}
    (cost,) = costs_of([json.dumps(line)])
    assert cost is not None
    assert cost.kind == "copy"
