"""fully_shard (FSDP2): a rank that ran out of memory runs what is left of its step without layers.

Each group of parameters is gathered before its layer, forward and backward, and its gradients are
scattered after it. A step that did not fail shows the order of these moves. After a failure the
moves that are left are made in that order, with gradients of zero. They are methods of torch's own
groups, which then are ready for the next step. If torch does not have these methods, or a failure
came in the middle of a scatter, the batch is not skipped.
"""

from __future__ import annotations

from collections import Counter
from functools import wraps
from typing import Any

from oomdoctor.monitor.guarding.ranks import Agree

_MOVES = ("pre_forward", "post_forward", "pre_backward", "post_backward")
_FINAL = "_root_post_backward_final_callback"
_listeners: list[Sharded] = []

Move = tuple[str, Any]  # the method, and the group


def is_sharded(model: Any) -> bool:
    """Whether fully_shard was applied to the model."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        return False
    return any(isinstance(module, FSDPModule) for module in model.modules())


class Sharded:
    """The steps of one model that fully_shard was applied to."""

    def __init__(self, model: Any, agree: Agree) -> None:
        self._model, self._agree = model, agree
        self._is_known = _listen(self)
        self._begun: list[Move] = []  # the moves of this block, in the order of their starts
        self._ended: list[Move] = []
        self._usual: list[Move] = []  # the moves of a block that did not fail
        self.is_final = False  # torch makes its own last moves of a backward pass

    def begin(self) -> None:
        """A block begins."""
        self._begun, self._ended = [], []

    def note(self, move: Move, *, ended: bool) -> None:
        """A group makes a move, or has made it."""
        if not self.is_final:
            (self._ended if ended else self._begun).append(move)

    def why_not(self) -> str | None:
        """It needs the order of a step that did not fail."""
        if not self._is_known:
            return "this version of torch has another fully_shard than oomdoctor knows"
        if not self._usual:
            return "it is the first one, so the order of the other ranks is not known yet"
        forwards = Counter(id(group) for name, group in self._usual if name == "pre_forward")
        if max(forwards.values(), default=0) != 1:
            return "a block holds several forward passes; guard each of them"
        if any(_cannot_be_made_again(move) for move in self._half_made()):
            return "memory ran out while parameters or gradients were sent"
        made, usual = _keys(self._backward(self._ended)), _keys(self._backward(self._usual))
        if made != usual[: len(made)]:
            return "its backward pass differs from the one before"
        return None

    def catch_up(self) -> None:
        """Make the moves that are left."""
        import torch

        states = [_state(m) for m in self._model.modules() if _state(m) is not None]
        root = next((s for s in states if s._is_root), states[0])
        with torch.enable_grad():
            if not self._begun:
                anything = torch.zeros((), device=root._device)
                root._root_pre_forward(root._modules[0], (anything,), {})
            self._forward(root)
            self._in_the_usual_order(root)
            self._backward_moves()
        moves = set(_keys(self._usual))
        with torch.no_grad():
            for state in states:
                getattr(state, "_modules_to_run_forward", set()).clear()
            for group in _groups(states):
                if ("post_backward", id(group)) not in moves:  # torch scatters it last
                    _fill(group)
            getattr(root, _FINAL)()

    def agree(self, failed: bool) -> list[int]:
        """The ranks whose block failed."""
        failed_ranks = self._agree(failed)
        if not failed_ranks:
            self._usual = list(self._ended)
        return failed_ranks

    def _forward(self, root: Any) -> None:
        """Gather what the other ranks gather in the rest of their forward pass, and let it go.

        A layer that failed may have been left gathered; then it would not be gathered again.
        """
        is_open = root._state_ctx.iter_forward_root is root
        at_the_end = {id(group) for group in _groups([root])} if is_open else set()
        ended, again = set(_keys(self._ended)), set()
        for name, group in self._usual:
            if name == "pre_forward" and (name, id(group)) not in ended:
                again.add(id(group))
                group.pre_forward(None, (), {})
            left = (name, id(group)) not in ended or id(group) in again
            if name == "post_forward" and left and id(group) not in at_the_end:
                group.post_forward(None, (), None)
        if is_open:
            root._post_forward(root._modules[0], (), None)

    def _in_the_usual_order(self, root: Any) -> None:
        """Let the backward pass gather ahead in the order of a whole forward pass."""
        if self._backward(self._begun):
            return
        order = root._comm_ctx.post_forward_order
        order.clear()
        for name, group in self._usual:
            if name == "post_forward":
                group._post_forward_indices.clear()
        for name, group in self._usual:
            if name == "post_forward":
                group._post_forward_indices.append(len(order))
                order.append(group)

    def _backward_moves(self) -> None:
        usual, made = self._backward(self._usual), self._backward(self._ended)
        for name, group in usual[len(made) :]:
            if name == "pre_backward":
                group._training_state = type(group._training_state).IDLE
                group.pre_backward(True)
            else:
                _fill(group)
                group.post_backward()

    def _half_made(self) -> list[Move]:
        left = list(self._begun)
        for move in self._ended:
            left.remove(move)
        return left

    @staticmethod
    def _backward(moves: list[Move]) -> list[Move]:
        return [move for move in moves if move[0].endswith("_backward")]


def _listen(listener: Sharded) -> bool:
    """Let the groups of torch say which moves they make; False if torch has no such groups."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
        from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
    except ImportError:
        return False
    if not all(hasattr(FSDPParamGroup, name) for name in _MOVES) or not all(
        hasattr(FSDPState, name) for name in (_FINAL, "_root_pre_forward", "_post_forward")
    ):
        return False
    if not _listeners:
        for name in _MOVES:
            setattr(FSDPParamGroup, name, _told(name, getattr(FSDPParamGroup, name)))
        setattr(FSDPState, _FINAL, _told_final(getattr(FSDPState, _FINAL)))
    _listeners.append(listener)
    return True


def _told(name: str, method: Any) -> Any:
    @wraps(method)
    def telling(self: Any, *args: Any, **kwargs: Any) -> Any:
        move = (name, self)
        for listener in _listeners:
            listener.note(move, ended=False)
        result = method(self, *args, **kwargs)
        for listener in _listeners:
            listener.note(move, ended=True)
        return result

    return telling


def _told_final(method: Any) -> Any:
    @wraps(method)
    def telling(self: Any) -> Any:
        for listener in _listeners:
            listener.is_final = True
        try:
            return method(self)
        finally:
            for listener in _listeners:
                listener.is_final = False

    return telling


def _fill(group: Any) -> None:
    """Give the parameters of a group gradients of zero, where they have none."""
    import torch

    for shard in group.fsdp_params:
        parameter = getattr(shard, "_unsharded_param", None)
        if parameter is None or not shard.sharded_param.requires_grad:
            continue
        if shard.unsharded_accumulated_grad is None and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _cannot_be_made_again(move: Move) -> bool:
    """Whether nobody knows if a move that failed in the middle has sent something already."""
    name, group = move
    return name == "post_backward" or (name == "pre_backward" and not group._post_forward_indices)


def _keys(moves: list[Move]) -> list[tuple[str, int]]:
    return [(name, id(group)) for name, group in moves]


def _groups(states: list[Any]) -> list[Any]:
    all_groups: list[Any] = []
    for state in states:
        groups = getattr(state, "_fsdp_param_groups", None)
        all_groups += groups if groups is not None else filter(None, [state._fsdp_param_group])
    return all_groups


def _state(module: Any) -> Any:
    get = getattr(module, "_get_fsdp_state", None)
    return None if get is None else get()
