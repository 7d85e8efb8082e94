"""A world of ranks of which only the first exists.

torch's fake process group answers collectives at once. accelerate takes the device for a GPU. For
other engines a rank is simulated alone, with the buckets of DDP and the products of ZeRO-3.

DDP has buckets beside the gradients of a model that each rank has whole. torch's reducer is C++
that reads tensors, so it does not run on fake ones. What it allocates is known
(torch/csrc/distributed/c10d/reducer.cpp, torch 2.6 to 2.13): before the first step one bucket for
all gradients of a type, later as many bytes in smaller ones. Before that, the first rank sends the
weights in flat copies of about 250 MiB, of which two exist at once (comm.cpp).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from oomdoctor.analysis.simulator.tape import TapeBlock
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.categories import TEMPORARY
from oomdoctor.system.environment import kept_variables
from oomdoctor.units import MIB
from oomdoctor.worker.protocol import launched_alone
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.simulating.shallow import WholeModel
from oomdoctor.worker.tracing.calls import resized_storages
from oomdoctor.worker.tracing.tensors import local_part, memory_of
from oomdoctor.worker.tracing.trace import AllocationTrace

if TYPE_CHECKING:
    from accelerate.state import PartialState

_COPIED = 250 * MIB
_AT_ONCE = 2


@contextmanager
def fake_world(config: TrainConfig, trace: AllocationTrace) -> Iterator[None]:
    """Be the first of the config's ranks while the context is open; alone, nothing changes."""
    if config.sharding == "none":
        yield
        return
    import torch.distributed as dist
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType
    from torch.distributed import _functional_collectives, device_mesh
    from torch.distributed.tensor import _sharding_prop
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def backend(*_: object, **__: object) -> tuple[str, DistributedType]:
        return "fake", DistributedType.MULTI_GPU

    def set_device(state: PartialState) -> None:
        state.device = torch.device("cpu")

    with ExitStack() as stack:
        stack.enter_context(kept_variables(launched_alone(config)))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=config.world_size)
        stack.callback(dist.destroy_process_group)
        # accelerate would ask for the GPUs of this machine.
        stack.enter_context(replaced(PartialState, "_prepare_backend", backend))
        stack.enter_context(replaced(PartialState, "set_device", set_device))
        # FSDP takes a mesh of the accelerators that it finds, and there may be some.
        stack.enter_context(replaced(torch._C, "_get_accelerator", lambda *_: torch.device("cpu")))
        streams = Streams(trace)
        stack.enter_context(replaced(torch.accelerator, "current_stream", streams.current_stream))
        for module in _users_of_handles(device_mesh):
            stack.enter_context(replaced(module, "_get_device_handle", lambda *_: streams))
        # A mesh of ranks is a tensor whose values are read, so no mode may make it fake.
        with_values: Callable[..., Callable[..., object]] = _disable_current_modes()
        for name in ("__init__", "__getitem__", "_flatten", "_unflatten"):
            if hasattr(device_mesh.DeviceMesh, name):
                made = with_values(getattr(device_mesh.DeviceMesh, name))
                stack.enter_context(replaced(device_mesh.DeviceMesh, name, made))
        make = device_mesh.init_device_mesh
        for replacement in _everywhere(make, with_values(make)):
            stack.enter_context(replacement)
        # DTensor takes fake tensors for those of a compiler, for which it pads more.
        for replacement in _everywhere(_functional_collectives._are_we_tracing, lambda: False):
            stack.enter_context(replacement)
        # accelerate tells parameters apart by their address, and fake ones have none.
        stack.enter_context(replaced(FakeTensor, "data_ptr", memory_of))
        # DTensor runs an operator on whole tensors to know the shape of its result. These are not
        # memory of the device.
        shapes = _sharding_prop.ShardingPropagator
        unseen = trace.paused()(shapes._propagate_tensor_meta_non_cached)
        stack.enter_context(replaced(shapes, "_propagate_tensor_meta_non_cached", unseen))
        stack.enter_context(resized_storages(trace.note_resized))
        yield


def _everywhere(
    function: Callable[..., object], instead: Callable[..., object]
) -> Iterator[AbstractContextManager[None]]:
    """Replace a function in all modules that imported it by its name."""
    name = function.__name__
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is function:
            yield replaced(module, name, instead)


def _users_of_handles(device_mesh: ModuleType) -> Iterator[ModuleType]:
    """The modules that look up what controls a device."""
    from torch.distributed.fsdp import _fully_shard

    yield device_mesh
    for name in ("_fsdp_collectives", "_fsdp_init", "_fsdp_param_group", "_fsdp_state"):
        module = getattr(_fully_shard, name, None)
        if module is not None and hasattr(module, "_get_device_handle"):
            yield module


def _nothing(*_: object, **__: object) -> None:
    """Nothing runs, so there is nothing to wait for."""


class Event:
    """A moment that is always past."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    record = wait = synchronize = staticmethod(_nothing)
    query = staticmethod(lambda: True)


@dataclass(frozen=True)
class Stream:
    """A stream by its number; 0 is the default one."""

    number: int

    wait_event = wait_stream = synchronize = staticmethod(_nothing)

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()


_Stream = Stream


class Streams:
    """What FSDP2 takes for `torch.cuda`; allocations of a trace are on the stream that it enters.

    Invariant: streams are numbered from 1 in the order of their making.
    """

    Event = Event
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    is_available = is_initialized = staticmethod(lambda: True)
    set_device = synchronize = staticmethod(_nothing)

    def __init__(self, trace: AllocationTrace) -> None:
        self._trace = trace
        self._made = 0

    def Stream(self, *_: object, **__: object) -> _Stream:  # noqa: N802 - the name in torch.cuda
        self._made += 1
        return _Stream(self._made)

    def current_stream(self, *_: object) -> _Stream:
        return _Stream(self._trace.stream)

    def stream(self, stream: _Stream) -> AbstractContextManager[None]:
        return replaced(self._trace, "stream", stream.number)


def zero3_products() -> AbstractContextManager[None]:
    """Linear layers as DeepSpeed's ZeRO-3 runs them, which gathers a weight again for the gradient.

    Its own function (`LinearFunctionForZeroStage3`, DeepSpeed 0.19 runtime/zero/linear.py) keeps
    the input of every layer. torch keeps it only where the weight is trained: not beside adapters.
    """

    class Product(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: torch.autograd.function.FunctionCtx,
            input: torch.Tensor,
            weight: torch.Tensor,
            bias: torch.Tensor | None = None,
        ) -> torch.Tensor:
            ctx.save_for_backward(input, weight, bias)
            if input.dim() == 2 and bias is not None:
                return torch.addmm(bias, input, weight.t())
            output = input.matmul(weight.t())
            if bias is not None:
                output += bias
            return output

        @staticmethod
        def backward(
            ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
        ) -> tuple[torch.Tensor | None, ...]:
            input, weight, bias = ctx.saved_tensors
            of_input = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
            rows = gradient.reshape(-1, gradient.shape[-1])
            of_weight = of_bias = None
            if ctx.needs_input_grad[1]:
                of_weight = rows.t().matmul(input.reshape(-1, input.shape[-1]))
            if bias is not None and ctx.needs_input_grad[2]:
                of_bias = rows.sum(0)
            return of_input, of_weight, of_bias

    def linear(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return Product.apply(input, weight, bias)

    return replaced(torch.nn.functional, "linear", linear)


def note_replica(model: torch.nn.Module, whole: WholeModel, trace: AllocationTrace) -> None:
    """Record what DDP allocates when it wraps a loaded model."""
    held: list[int] = []
    for size in _flat_copies(_tensors(model, whole)):
        if len(held) == _AT_ONCE:
            trace.free_hidden([held.pop(0)])
        held.append(trace.note_hidden(TapeBlock(size, TEMPORARY, "ddp")))
    for block in held:
        trace.free_hidden([block])
    buckets: Counter[torch.dtype] = Counter()
    for dtype, size, trains in _tensors(model, whole):
        if trains:
            buckets[dtype] += size
    for size in buckets.values():
        trace.note_hidden(TapeBlock(size, TEMPORARY, "ddp"))


def _tensors(model: torch.nn.Module, whole: WholeModel) -> Iterator[tuple[torch.dtype, int, bool]]:
    """Type, bytes and whether it trains, of each parameter at full depth, then of each buffer."""
    for number, parameters in whole.at_full_depth():
        sizes = [local_part(parameter).untyped_storage().nbytes() for parameter in parameters]
        for _ in range(number):
            for parameter, size in zip(parameters, sizes, strict=True):
                yield parameter.dtype, size, parameter.requires_grad
    for buffer in model.buffers():
        yield buffer.dtype, buffer.untyped_storage().nbytes(), False


def _flat_copies(tensors: Iterator[tuple[torch.dtype, int, bool]]) -> Iterator[int]:
    """Bytes of each copy. A bucket of one tensor is sent as it is."""
    waiting: dict[torch.dtype, list[int]] = {}
    for dtype, size, _ in tensors:
        sizes = waiting.setdefault(dtype, [])
        sizes.append(size)
        if sum(sizes) >= _COPIED:
            if len(sizes) > 1:
                yield sum(sizes)
            sizes.clear()
    for sizes in waiting.values():
        if len(sizes) > 1:
            yield sum(sizes)
