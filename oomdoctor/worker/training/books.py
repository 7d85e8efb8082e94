"""The few numbers that the Trainer's loop keeps on the device from one step to the next.

Each is a scalar: 2 to 4 bytes, but a block of 512 in PyTorch's allocator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Books:
    """The loss since the last line of the log, that of the last micro-batch, and a norm.

    `norm` is that of the last gradients; the Trainer forgets it when it clips the next ones.
    """

    running: torch.Tensor
    last: torch.Tensor | None = None
    norm: torch.Tensor | None = None

    def enter_loss(self) -> None:
        """Add the last loss. As the Trainer, wait for the device, and leave out what is NaN."""
        assert self.last is not None
        if not (self.last.isnan() or self.last.isinf()):
            self.running += self.last

    def logged(self) -> float:
        """The loss since the last call, as the Trainer reads it for a line of the log."""
        loss = float(self.running)
        self.running -= self.running
        return loss

    def close(self) -> None:
        """Forget what a step left."""
        self.last = self.norm = None


def open_books(device: torch.device) -> Books:
    """The books before the first step."""
    return Books(torch.tensor(0.0, device=device))
