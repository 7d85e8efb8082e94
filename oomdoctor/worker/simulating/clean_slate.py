"""Make libraries forget a job before the next one runs in the same process.

Only simulations share a process, because the next rung reuses what `device.mode` remembers.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from oomdoctor.system.environment import kept_variables


@contextlib.contextmanager
def clean_slate() -> Iterator[None]:
    """Restore the environment and the libraries' global settings at the end.

    TrainingArguments writes the mixed precision to the environment. accelerate keeps its state in a
    class. bitsandbytes keeps the precision of states by the address of a parameter. Garbage is
    collected once at the end: the collector would take a fifth of the time, and the tape would
    depend on when it runs.
    """
    gc.disable()
    try:
        with kept_variables():
            yield
    finally:
        gc.enable()
        _forget()
        gc.collect()
        gc.freeze()  # what is left stays (modules, caches): the next collection passes it over


def _forget() -> None:
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if "bitsandbytes" in sys.modules:
        from bitsandbytes.optim import GlobalOptimManager

        GlobalOptimManager.get_instance().initialize()
