"""DeepSpeed's engine: one of its optimizer steps is several of torch's, one for each group."""

from __future__ import annotations

from functools import wraps
from typing import Any

# The method that takes an optimizer step, or several backward passes of which the last takes one.
ENGINES = {
    "deepspeed.runtime.engine": ("DeepSpeedEngine", "step"),
    "deepspeed.runtime.pipe.engine": ("PipelineEngine", "train_batch"),
}


def mark_steps(module: str) -> None:
    """Let our step end where that of the engine in an imported module ends."""
    import sys

    from oomdoctor.monitor.inside import process_watch
    from oomdoctor.monitor.inside.start import current

    name, method = ENGINES[module]
    engine = getattr(sys.modules[module], name)
    take = getattr(engine, method)

    @wraps(take)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.global_steps
        process_watch.engines += 1
        try:
            result = take(self, *args, **kwargs)
        finally:
            process_watch.engines -= 1
        here = current()
        if here is not None and self.global_steps > before:
            here.end_step()
        return result

    setattr(engine, method, marked)
