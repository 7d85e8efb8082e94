"""What libraries remember of a job, forgotten before the next one in the same process.

Only simulations share a process: what torch keeps of its fake kernels serves the next rung.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def clean_slate() -> Iterator[None]:
    """The environment and the libraries' global settings are afterwards what a process starts with.

    TrainingArguments writes the mixed precision into the environment, accelerate keeps its state
    in the class, and bitsandbytes the precision of states by the address of a parameter.
    """
    environment = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        _forget()
        gc.collect()


def _forget() -> None:
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if "bitsandbytes" in sys.modules:
        from bitsandbytes.optim import GlobalOptimManager

        GlobalOptimManager.get_instance().initialize()
