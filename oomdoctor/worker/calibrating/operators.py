"""The operators that are timed alone, at sizes as they have in training steps.

Parts of a training run once, forward and backward, and every operator that they call is noted with
its arguments. So each device has the operators that it chooses itself. Products take turns with
several weights, because those of a training step are in no cache when they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import NotRequired, TypedDict

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch._ops import OpOverload

from oomdoctor.package_data import data_of
from oomdoctor.records.job.costs import TF32, OpCost
from oomdoctor.worker.simulating.costs import cost_of
from oomdoctor.worker.tracing.calls import OperatorCall, Recording
from oomdoctor.worker.training.techniques.precision import kept_precision

Arguments = tuple[tuple[object, ...], dict[str, object]]  # of a call, by place and by name


class Sizes(TypedDict):
    """The sizes of operators on a kind of device; see the table."""

    elements: int
    dtypes: list[str]
    products: list[list[int]]
    attention: list[list[int]]
    rows: list[list[int]]
    logits: list[list[int]]
    images: list[list[int]]
    parameters: list[int]
    copied: NotRequired[int]


class Table(TypedDict):
    """What is measured, and for how long."""

    operators_share: float
    sample_s: dict[str, float]
    least_rounds: int
    turns: int
    sizes: dict[str, Sizes]


TABLE: Table = data_of("calibration.toml")
_ALIGNED = 64  # elements; vector loads need 16 bytes, caches have lines of up to 128
_TYPES = ("float32", "bfloat16", "float16", TF32, "uint8")  # the last one is copied
_MOST_KEPT = 0.8  # of a GPU, by the arguments of operators
_NEVER_ALONE = frozenset(("set_", "resize_", "_local_scalar_dense"))


@dataclass(slots=True)
class Operator:
    """An operator, its cost, and the arguments of calls that take turns."""

    func: OpOverload
    cost: OpCost
    turns: list[Arguments] = field(default_factory=list)


class Memory:
    """Tensors of random values on a device; those of a type share one block of memory."""

    def __init__(self, device: torch.device, elements: int) -> None:
        self.device, self._elements = device, elements
        self._blocks: dict[torch.dtype, torch.Tensor] = {}
        self._next = 0

    def take(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The next part of the block: a contiguous tensor, which later ones may overlap."""
        if dtype not in self._blocks:
            values = torch.randn(self._elements, device=self.device)
            self._blocks[dtype] = values.to(dtype)
        count = prod(shape)
        if self._next + count > self._elements:
            self._next = 0
        part = self._blocks[dtype][self._next : self._next + count]
        self._next += -(-count // _ALIGNED) * _ALIGNED
        return part.view(shape)

    def has_room(self) -> bool:
        """Whether enough of a GPU is free for the results of operators, when they are timed."""
        if self.device.type != "cuda":
            return True
        total: int = torch.cuda.get_device_properties(self.device).total_memory
        kept: int = torch.cuda.memory_allocated(self.device)
        return kept < _MOST_KEPT * total

    def leaf(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """A tensor that gets a gradient."""
        return self.take(dtype, *shape).detach().requires_grad_()

    def numbers(self, below: int, *shape: int) -> torch.Tensor:
        """Random whole numbers, as tokens and labels are."""
        return torch.randint(below, shape, device=self.device)


class Counting:
    """Counts the operators with a cost by their costs."""

    def __init__(self) -> None:
        self.costs: Counter[OpCost] = Counter()

    def begins(self) -> None:
        """Nothing has to be known before."""

    def note_operator(self, call: OperatorCall) -> None:
        """Count an operator."""
        cost = cost_of(call)
        if cost is not None:
            self.costs[cost] += 1


class Noting:
    """Keeps every operator that moves floats or copied bytes, with its arguments."""

    def __init__(self, most_turns: int) -> None:
        self.operators: dict[tuple[OpOverload, OpCost], Operator] = {}
        self._most = most_turns

    def begins(self) -> None:
        """Nothing has to be known before."""

    def note_operator(self, call: OperatorCall) -> None:
        """Keep an operator; of products also some more calls at the same cost."""
        func = call.func
        alone = func._schema.name.partition("::")[2] not in _NEVER_ALONE
        cost = cost_of(call) if alone else None
        if cost is None or not cost.bytes_moved or cost.dtype not in _TYPES:
            return
        noted = self.operators.setdefault((func, cost), Operator(func, cost))
        if len(noted.turns) < (self._most if cost.kind == "matmul" else 1):
            noted.turns.append((tuple(call.args), dict(call.kwargs)))


def operators(memory: Memory) -> list[Operator]:
    """Every operator at every size that there is memory for, of the types that the device has."""
    noting = Noting(TABLE["turns"])
    sizes = TABLE["sizes"][memory.device.type]
    types = [getattr(torch, name) for name in sizes["dtypes"]]
    parts = [_parts(memory, dtype, sizes) for dtype in types if _has(memory.device, dtype)]
    with torch.enable_grad(), Recording(noting):
        if memory.device.type == "cuda" and _has(memory.device, torch.bfloat16):
            for shape in sizes["products"]:
                with precision(TF32), suppress(torch.OutOfMemoryError):
                    _product(memory, torch.float32, *shape)
        # What keeps little memory comes first, of all types.
        for part in (part for same in zip(*parts, strict=True) for part in same):
            if memory.has_room():
                with suppress(torch.OutOfMemoryError):
                    part()
    return list(noting.operators.values())


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """In this context, products of float32 run in TF32 if that is the type, and in full if not."""
    with kept_precision():
        torch.set_float32_matmul_precision("high" if dtype == TF32 else "highest")
        yield


def one_element(memory: Memory) -> Operator:
    """An operator with next to no work: what remains is its launch."""
    noting = Noting(1)
    number = memory.take(torch.float32, 1)
    with Recording(noting):
        torch.add(number, number)
    (operator,) = noting.operators.values()
    return operator


def _has(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type == "cpu" or dtype != torch.bfloat16:
        return True
    capability: tuple[int, int] = torch.cuda.get_device_capability(device)
    return capability >= (8, 0)


def _parts(memory: Memory, dtype: torch.dtype, sizes: Sizes) -> list[Callable[[], None]]:
    """The parts of a training, each at every size; as many for every type."""
    over_rows = (_layer_norm, _rms_norm, _activations, _residual, _rotation)
    return [
        *(partial(_product, memory, dtype, *shape) for shape in sizes["products"] * TABLE["turns"]),
        *(partial(_attention, memory, dtype, *shape) for shape in sizes["attention"]),
        *(partial(_convolution, memory, dtype, *shape) for shape in sizes["images"]),
        partial(_copies, memory, sizes.get("copied", 0)),
        *(partial(part, memory, dtype, *shape) for shape in sizes["rows"] for part in over_rows),
        *(partial(_update, memory, dtype, count) for count in sizes["parameters"]),
        *(partial(_loss, memory, dtype, *shape) for shape in sizes["logits"]),
    ]


def _product(
    memory: Memory, dtype: torch.dtype, batch: int, rows: int, columns: int, depth: int
) -> None:
    """(batch, m, n, k); the second factor is transposed, as the weight of a linear layer is."""
    left = memory.take(dtype, batch, rows, depth)
    right = memory.take(dtype, batch, columns, depth).transpose(1, 2)
    if batch == 1:
        torch.mm(left[0], right[0])
    else:
        torch.bmm(left, right)


def _attention(
    memory: Memory, dtype: torch.dtype, rows: int, heads: int, length: int, width: int
) -> None:
    shape = rows, heads, length, width
    query, key, value = (memory.leaf(dtype, *shape) for _ in range(3))
    result = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    result.backward(memory.take(dtype, *shape))


def _layer_norm(memory: Memory, dtype: torch.dtype, rows: int, width: int) -> None:
    hidden, weight, bias = (memory.leaf(dtype, *shape) for shape in ((rows, width), *2 * [[width]]))
    F.layer_norm(hidden, (width,), weight, bias).backward(memory.take(dtype, rows, width))


def _rms_norm(memory: Memory, dtype: torch.dtype, rows: int, width: int) -> None:
    """As the models of transformers have it: in float32, operator by operator."""
    hidden, weight = memory.leaf(dtype, rows, width), memory.leaf(dtype, width)
    wide = hidden.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    normed = weight * (wide * torch.rsqrt(variance + 1e-6)).to(dtype)
    normed.backward(memory.take(dtype, rows, width))


def _activations(memory: Memory, dtype: torch.dtype, rows: int, width: int) -> None:
    gate, up = (memory.leaf(dtype, rows, width) for _ in range(2))
    gradient = memory.take(dtype, rows, width)
    (F.silu(gate) * up).backward(gradient)
    F.gelu(gate).backward(gradient)
    F.gelu(gate, approximate="tanh").backward(gradient)
    F.dropout(gate, 0.1).backward(gradient)
    torch.tanh(gate).backward(gradient)


def _residual(memory: Memory, dtype: torch.dtype, rows: int, width: int) -> None:
    left, right, bias = (memory.leaf(dtype, *shape) for shape in (*2 * [[rows, width]], [width]))
    (left + right + bias).backward(memory.take(dtype, rows, width))
    left.detach() * 0.5
    other = torch.float32 if dtype != torch.float32 else torch.bfloat16
    if _has(memory.device, other):
        left.detach().to(other).to(dtype)


def _rotation(memory: Memory, dtype: torch.dtype, rows: int, width: int) -> None:
    """Of queries and keys, as the models of transformers do it, and the copy after attention."""
    head = 64
    hidden = memory.leaf(dtype, 1, rows, width // head, head)
    turned = hidden.transpose(1, 2)
    cosine, sine = (memory.take(dtype, 1, 1, rows, head) for _ in range(2))
    halves = torch.cat((-turned[..., head // 2 :], turned[..., : head // 2]), dim=-1)
    mixed = turned * cosine + halves * sine
    mixed.transpose(1, 2).contiguous().backward(memory.take(dtype, 1, rows, width // head, head))


def _loss(memory: Memory, dtype: torch.dtype, rows: int, vocabulary: int) -> None:
    """Cross entropy in float32, as transformers has it, and an embedding."""
    logits, labels = memory.leaf(dtype, rows, vocabulary), memory.numbers(vocabulary, rows)
    F.cross_entropy(logits.float(), labels).backward()
    weight = memory.leaf(dtype, vocabulary, 768)
    F.embedding(labels, weight).backward(memory.take(dtype, rows, 768))
    scores = memory.leaf(dtype, rows, rows)
    torch.softmax(scores, -1).backward(memory.take(dtype, rows, rows))


def _convolution(
    memory: Memory,
    dtype: torch.dtype,
    images: int,
    channels: int,
    side: int,
    filter_side: int,
    groups: int,
) -> None:
    """Of images that keep their size and channels."""
    shape = images, channels, side, side
    source = memory.leaf(dtype, *shape)
    weight = memory.leaf(dtype, channels, channels // groups, filter_side, filter_side)
    result = F.conv2d(source, weight, padding=filter_side // 2, groups=groups)
    result.backward(memory.take(dtype, *shape))


def _update(memory: Memory, dtype: torch.dtype, count: int) -> None:
    """Clipping and two kinds of AdamW, over a list of tensors."""
    parameters = [torch.nn.Parameter(memory.take(dtype, count // 4).clone()) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = memory.take(dtype, count // 4).clone()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    torch.optim.AdamW(parameters, fused=True).step()
    torch.optim.AdamW(parameters).step()  # over lists on a GPU


def _copies(memory: Memory, size: int) -> None:
    """To the device from pinned memory, and back; nothing on the CPU."""
    if not size:
        return
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    host.to(memory.device, non_blocking=True).to("cpu")
