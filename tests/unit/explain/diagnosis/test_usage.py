"""Who holds the memory of a device, by the figures of one message."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.usage import others, reserved
from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.units import GIB

# Up to torch 2.0 the message does not say what this process uses outside its allocator.
_OLD = (
    "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 79.00 GiB total capacity; {} GiB "
    "already allocated; 0 bytes free; {} GiB reserved in total by PyTorch)"
)


def _read(text: str) -> OomEvent:
    event = parse_oom(text)
    assert event is not None
    return event


def test_a_context_and_nccl_s_buffers_are_not_others() -> None:
    assert others(_read(_OLD.format("75.00", "76.50"))) == 0


def test_what_no_context_explains_is_others() -> None:
    assert others(_read(_OLD.format("40.00", "41.00"))) == 38 * GIB


def test_a_message_with_its_own_use_leaves_no_doubt() -> None:
    event = _read(
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 24.00 GiB "
        "of which 0 bytes is free. Including non-PyTorch memory, this process has 22.00 GiB memory "
        "in use."
    )
    assert others(event) == 2 * GIB


def test_private_pools_are_a_part_of_what_is_allocated() -> None:
    event = _read(
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 24.00 GiB "
        "of which 0 bytes is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, with "
        "4.00 GiB allocated in private pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by "
        "PyTorch but unallocated."
    )
    assert reserved(event) == 21 * GIB
