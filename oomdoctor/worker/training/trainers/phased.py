"""A Trainer class that says when the forward pass of its step ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Trainer

OnPhase = Callable[[str], None]


def phased(trainer: type[Trainer], on_phase: OnPhase | None) -> Any:
    """A subclass of `trainer` that calls `on_phase` after each forward pass of training."""

    class PhasedTrainer(trainer):  # type: ignore[misc]
        """The Trainer; it also says when the forward pass of its step ends."""

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            result = super().compute_loss(*args, **kwargs)
            if on_phase is not None and self.model.training:
                on_phase("backward")
            return result

        def _send_telemetry(self) -> None:
            """TRL tells its authors about each trainer; a rung is no training of theirs."""

    return PhasedTrainer
