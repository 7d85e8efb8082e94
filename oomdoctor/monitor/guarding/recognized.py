"""Whether an exception means that GPU memory ran out."""

from __future__ import annotations

import sys

from oomdoctor.explain.reading.dialects.parse import flatten, read_message

_MOST_TEXT = 20_000


def is_out_of_memory(error: BaseException) -> bool:
    """Whether GPU memory ran out: by the type of torch, or by the message of a library below it.

    cuBLAS, cuDNN, NCCL, Triton and bitsandbytes raise a RuntimeError, which says so in words only.
    """
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None) or getattr(
        getattr(torch, "cuda", None), "OutOfMemoryError", None
    )
    if kind is not None and isinstance(error, kind):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = read_message(flatten(str(error)[:_MOST_TEXT]))
    return message is not None and message.resource == "gpu" and not message.dialect.hints_only
