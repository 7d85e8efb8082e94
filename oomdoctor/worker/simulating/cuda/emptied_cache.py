"""The allocator's cache is emptied where peft prepares a quantized model, if there is a GPU.

peft does so since `prepare_model_for_kbit_training` has `auto_clear_cache` (huggingface/peft#3265):
after it has cast what is not quantized to float32, and before anything else is allocated.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from oomdoctor.analysis.simulator.tape import EMPTIED
from oomdoctor.worker.simulating.replacing import replaced
from oomdoctor.worker.tracing.trace import AllocationTrace


@contextmanager
def noted(trace: AllocationTrace) -> Iterator[None]:
    """Put it on the tape while the context is open, as on a machine with a GPU."""
    import peft

    prepare = peft.prepare_model_for_kbit_training

    @wraps(prepare)
    def noting(*args: Any, **kwargs: Any) -> Any:
        model = prepare(*args, **kwargs)
        trace.tape.enter(EMPTIED, trace.phase)
        return model

    if "auto_clear_cache" not in inspect.signature(prepare).parameters:
        yield
        return
    # It asks for a GPU, and there is none.
    with replaced(peft, "prepare_model_for_kbit_training", noting):
        yield
