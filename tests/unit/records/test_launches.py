"""Records of launches are read as the emulated device writes them."""

from __future__ import annotations

from struct import pack

from oomdoctor.records.job.costs import TF32
from oomdoctor.records.job.launches import read_launches

NAMES = ["vectorized", "cublasLtMatmul", "all_reduce", "forward"]
_KERNEL, _PRODUCT, _COPY, _COLLECTIVE, _CALL, _MARK = 1, 2, 3, 5, 8, 9


def record(kind: int, *numbers: int, dtype: int = 0, what: int = 0, name: int = 0) -> bytes:
    """A record of thread 1 in its call 7, one second after the clock began, on stream 3."""
    padded = (*numbers, 0, 0, 0, 0)[:4]
    return pack("<QIIBBHIQ4q", 10**9, 1, 7, kind, dtype, what, name, 3, *padded)


def test_each_kind_has_its_numbers() -> None:
    data = record(_KERNEL, 8 | 2 << 32, 1 | 128 << 32, 4 | 1 << 32, name=1)
    data += record(_PRODUCT, 2304, 4096, 768, 2, dtype=14, what=1 | 4 << 3, name=2)
    data += record(_PRODUCT, 8, 8, 8, 1, what=4, name=2)
    data += record(_COPY, 512, what=1) + record(_COLLECTIVE, 1 << 33, 8, name=3)
    data += (
        record(7, 80, 70, what=3) + record(_CALL, 5, 3) + record(_MARK, name=4) + record(_MARK, 9)
    )
    kernel, product, short, copy, collective, graph, call, phase, step = read_launches(data, NAMES)
    assert (kernel.kind, kernel.name, kernel.numbers) == (
        "kernel",
        "vectorized",
        (8, 2, 1, 128, 4, 1),
    )
    assert (kernel.at_s, kernel.thread, kernel.call, kernel.stream) == (1.0, 1, 7, 3)
    assert product.numbers == (2, 4096, 2304, 768)  # by rows, where cuBLAS has columns
    assert (product.dtype, product.transposed, product.epilogue) == ("bfloat16", (True, False), 4)
    assert (short.dtype, short.transposed, short.epilogue) == (TF32, (False, False), 1)
    assert (copy.direction, copy.numbers) == ("to_device", (512,))
    assert (collective.name, collective.numbers) == ("all_reduce", (1 << 33, 8))
    assert graph.numbers == (3, 80, 70)
    assert call.numbers == (4, 3)
    assert (phase.name, step.name, step.numbers) == ("forward", None, (9,))


def test_what_follows_the_last_record_is_left_out() -> None:
    data = record(_COPY, 512, what=2) + bytes(64) + record(_COPY, 512, what=2)
    assert len(list(read_launches(data, NAMES))) == 1
    assert len(list(read_launches(record(_COPY, 512, what=2) + b"half a record", NAMES))) == 1
