"""The message of a replay is PyTorch's, and our own parser reads it back."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.allocator.records import OutOfMemory, format_size, out_of_memory_message
from oomdoctor.analysis.allocator.replay import replay_order
from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (512, "512 bytes"),
        (KIB, "1024 bytes"),
        (KIB + 1, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (GIB, "1024.00 MiB"),
        (25_444_745_216, "23.70 GiB"),
    ],
)
def test_sizes_are_printed_as_pytorch_prints_them(size: int, text: str) -> None:
    assert format_size(size) == text


def _record(limit: int | None = None) -> OutOfMemory:
    return OutOfMemory(
        requested_bytes=1002 * MIB,
        tensor_bytes=1001 * MIB,
        free_bytes=768 * MIB,
        reserved_bytes=22 * GIB,
        allocated_bytes=20 * GIB + 512 * MIB,
        limit_bytes=limit,
    )


def test_the_words_of_torch_2_6() -> None:
    assert out_of_memory_message(_record(), gpu=3, total_bytes=24 * GIB) == (
        "CUDA out of memory. Tried to allocate 1002.00 MiB. GPU 3 has a total capacity of"
        " 24.00 GiB of which 768.00 MiB is free. Including non-PyTorch memory, this process has"
        " 23.25 GiB memory in use. Of the allocated memory 20.50 GiB is allocated by PyTorch, and"
        " 1.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is"
        " large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
        " fragmentation.  See documentation for Memory Management "
        " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def test_the_capacity_of_the_record_is_the_default() -> None:
    text = out_of_memory_message(_record(), 1)
    assert "GPU 1 has a total capacity of 22.75 GiB of which 768.00 MiB is free." in text
    assert "this process has 22.00 GiB memory in use." in text


def test_the_explainer_reads_every_figure_back() -> None:
    event = parse_oom(out_of_memory_message(_record(23 * GIB), total_bytes=24 * GIB))
    assert event is not None
    assert event.dialect == "cuda_caching_allocator"
    assert event.requested_bytes == 1002 * MIB
    assert event.capacity_bytes == 24 * GIB
    assert event.free_bytes == 768 * MIB
    assert event.process_bytes == 24 * GIB - 768 * MIB
    assert event.allowed_bytes == 23 * GIB
    assert event.allocated_bytes == 20 * GIB + 512 * MIB
    assert event.reserved_unallocated_bytes == GIB + 512 * MIB


def test_a_failed_replay_can_be_told_and_read() -> None:
    sizes = [300 * MIB, 3 * MIB, 800 * MIB]
    seen = replay_order([1, 2, 3], sizes, capacity_bytes=1000 * MIB)
    assert seen.out_of_memory is not None
    event = parse_oom(out_of_memory_message(seen.out_of_memory, total_bytes=1024 * MIB + 512 * MIB))
    assert event is not None
    assert event.requested_bytes == 800 * MIB
    assert event.free_bytes == 680 * MIB
    assert event.allocated_bytes == 303 * MIB
    assert event.reserved_unallocated_bytes == 17 * MIB
    assert event.process_bytes == (1536 - 680) * MIB


def test_without_a_capacity_the_rest_of_the_device_is_free() -> None:
    seen = replay_order([1, 2], [300 * MIB, 400 * MIB], limit_bytes=600 * MIB)
    assert seen.out_of_memory is not None
    event = parse_oom(out_of_memory_message(seen.out_of_memory, total_bytes=GIB))
    assert event is not None
    assert (event.free_bytes, event.process_bytes) == (724 * MIB, 300 * MIB)
    assert event.allowed_bytes == 600 * MIB
