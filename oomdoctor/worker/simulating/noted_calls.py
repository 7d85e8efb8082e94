"""The costs of operator calls that the emulated device noted, by the rules of a simulated step.

A call is a line of JSON: the schema of the operator, its arguments and its results, in which a
tensor is `{"dtype": "Half", "cuda": true, "sizes": [..], "strides": [..]}`. A cost needs only
shapes and types, so tensors without memory stand for the real ones. The operators of other
packages need not be loaded: their schema says which arguments they read and write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch._C import FunctionSchema
from torch._ops import OpOverloadPacket

from oomdoctor.records.codec import to_json
from oomdoctor.records.job.costs import OpCost
from oomdoctor.worker.simulating.costs import cost_of
from oomdoctor.worker.tracing.calls import OperatorCall

_TYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "Byte": "uint8", "Char": "int8",
    "Short": "int16", "Int": "int32", "Long": "int64", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
"""torch's name of a type for those whose name in C++ is another one, except for capitals."""


def answer_costs() -> int:
    """Read calls from standard input, a line each, and write a JSON list of their costs."""
    json.dump([to_json(cost) for cost in costs_of(sys.stdin)], sys.stdout)
    return 0


def costs_of(lines: Iterable[str]) -> list[OpCost | None]:
    """The cost of each call; None if the operator runs no kernel, or its cost is not known."""
    return [_cost_of(json.loads(line)) for line in lines]


class _Tensor(TypedDict):
    dtype: str
    cuda: bool
    sizes: list[int]
    strides: list[int]


_Value = None | bool | int | float | _Tensor | list["_Value"]


class _Call(TypedDict):
    """A line of the device; the arguments have the order of the schema."""

    schema: str
    args: list[_Value]
    results: list[_Value]


@dataclass(frozen=True, slots=True)
class _Operator:
    """What `cost_of` asks an operator for."""

    _schema: FunctionSchema
    overloadpacket: OpOverloadPacket | None


def _cost_of(noted: _Call) -> OpCost | None:
    with suppress(Exception):  # of one operator of many; its kernels are then not known
        schema = torch._C.parse_schema(noted["schema"])
        space, _, name = schema.name.partition("::")
        packet = getattr(getattr(torch.ops, space), name, None)
        args = tuple(map(_value, noted["args"]))
        results = tuple(map(_value, noted["results"]))
        result = results[0] if len(results) == 1 else results or None
        return cost_of(OperatorCall(_Operator(schema, packet), args, {}, result))
    return None


def _value(noted: _Value) -> object:
    if isinstance(noted, list):
        return [_value(each) for each in noted]
    if not isinstance(noted, dict):
        return noted
    dtype = getattr(torch, _TYPES.get(noted["dtype"], noted["dtype"].lower()))
    tensor = torch.empty_strided(noted["sizes"], noted["strides"], dtype=dtype, device="meta")
    tensor.fake_device = torch.device("cuda" if noted["cuda"] else "cpu")
    return tensor
