"""Step each parameter in the backward pass as soon as its gradient is there, and free the gradient.

As torchtune's `optimizer_in_bwd` and PyTorch's tutorial do it: one optimizer for each parameter,
called by a hook. So gradients of only a few parameters exist at a time, and they cannot be
accumulated or clipped.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

_NOTE = (
    "the Trainer has no setting for steps in the backward pass; torchtune has optimizer_in_bwd, "
    "and PyTorch's tutorial 'optimizer step in backward' has the lines; gradients are not clipped"
)


def _settle(own: Any, whole: Any) -> None:
    """Let optimizers of bitsandbytes share their tables, but not the settings of parameters.

    It keeps those by the position of a parameter too, which is the same in all of them.
    """
    own.name2qmap = whole.name2qmap
    own.mng = copy.copy(whole.mng)
    own.mng.index2config = {}


def stepped_in_backward(
    optimizer: Optimizer, kind: type[Optimizer], settings: dict[str, Any], notes: list[str]
) -> Optimizer:
    """An optimizer that does nothing in a step: its parameters update in the backward pass.

    `optimizer` must not have stepped yet; `kind` and `settings` are its class and the arguments it
    was made with. The returned optimizer has its parameters and all states.
    """
    import torch

    notes.append(_NOTE)
    states = optimizer.state
    single: dict[torch.Tensor, Optimizer] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own = single[parameter] = kind([{**group, "params": [parameter]}], **settings)
            own.state = states
            if type(own).__module__.startswith("bitsandbytes"):
                _settle(own, optimizer)

    def update(parameter: torch.Tensor) -> None:
        single[parameter].step()
        parameter.grad = None

    for parameter in single:
        parameter.register_post_accumulate_grad_hook(update)

    class SteppedInBackward(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__([dict(group) for group in optimizer.param_groups], {})

        @property
        def state(self) -> Any:
            return states

        @state.setter
        def state(self, _: Any) -> None:
            """accelerate loads states that were saved, and there are none yet."""

        def step(self, closure: Any = None) -> None:
            """Nothing is left to do."""

    return SteppedInBackward()
