"""Tell a simulated step the sizes of its images, which Qwen's encoders read from a tensor.

The values decide shapes: how patches are cut into windows, and how many tokens an image has. In a
simulation no tensor has values. So the grid is an array of numpy here, what the encoders compute
from it is computed for real, and borders of windows, which are read too, stay arrays. These take a
few hundred bytes on a GPU, which are left out. Read from transformers 5.23 `vision_utils`, and from
`modeling_qwen2_5_vl` of 4.51, whose encoders compute the same in methods.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.training.batch import Batch

if TYPE_CHECKING:
    import numpy
    from transformers import PreTrainedModel

# What a function of the grid returns: one value or several, tensors or borders that are read.
Values: TypeAlias = "torch.Tensor | numpy.ndarray | tuple[torch.Tensor | numpy.ndarray, ...]"

GRID = "image_grid_thw"
_MODULES = ("qwen2_vl.modeling_qwen2_vl", "qwen2_5_vl.modeling_qwen2_5_vl")
_MODELS = (
    "Qwen2VLModel",
    "Qwen2_5_VLModel",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)
_ENCODERS = ("Qwen2VisionTransformerPretrainedModel", "Qwen2_5_VisionTransformerPretrainedModel")
# Functions of the grid, each with what it returns: a tensor, or borders that are read.
_FUNCTIONS = {
    "get_vision_position_ids": ("tensor",),
    "get_vision_attention_seqlens": ("borders", "borders"),
    "get_vision_window_index": ("tensor", "borders"),
}


@contextmanager
def known(batches: Sequence[Batch], grid: tuple[int, int, int] | None) -> Iterator[None]:
    """Give the images of all batches the same `grid`; None if the model reads none."""
    if grid is None:
        yield
        return
    import numpy

    tensors: list[torch.Tensor] = [batch[GRID] for batch in batches]
    for batch, tensor in zip(batches, tensors, strict=True):
        batch[GRID] = numpy.array([grid] * len(tensor))
    with ExitStack() as stack:
        # They are inputs like others again, when they are freed.
        stack.callback(_put_back, batches, tensors)
        asked: list[PreTrainedModel] = []
        stack.callback(_forget_positions, asked)
        for name in _MODULES:
            module = sys.modules.get(f"transformers.models.{name}")
            for function in _FUNCTIONS:
                if hasattr(module, function):
                    # These read the grid, which has values only here.
                    own = _computed(getattr(module, function), _FUNCTIONS[function])
                    stack.enter_context(replaced(module, function, own))
            for model in _MODELS:
                owner = getattr(module, model, None)
                if "get_rope_index" in vars(owner or object):
                    # It reads the kinds of all tokens, to number the patches of images.
                    stack.enter_context(replaced(owner, "get_rope_index", _numbering(asked)))
            for encoder in _ENCODERS:
                owner = getattr(module, encoder, None)
                if owner is not None and hasattr(owner, "rot_pos_emb"):
                    _know_in_methods(stack, owner, grid)
        yield


def _know_in_methods(
    stack: ExitStack, encoder: type[PreTrainedModel], grid: tuple[int, int, int]
) -> None:
    """Compute for real what methods of the `encoder` read from the grid.

    It finds the borders of images with two functions whose results have a length by value.
    """
    own_forward = encoder.forward

    def forward(
        model: PreTrainedModel, pixels: torch.Tensor, grid_thw: numpy.ndarray, *args: object
    ) -> torch.Tensor:
        images = len(grid_thw)
        with ExitStack() as inside:
            replace_in = partial(replaced, torch)
            inside.enter_context(
                replace_in("repeat_interleave", lambda sizes, *_: sizes.new_empty(images * grid[0]))
            )
            inside.enter_context(replace_in("unique_consecutive", torch.clone))
            # The encoder multiplies columns of the grid, now as tensors.
            tensor = torch.empty((images, 3), dtype=torch.int64)
            result: torch.Tensor = own_forward(model, pixels, tensor, *args)
        return result

    def rotary(model: PreTrainedModel, grid_thw: torch.Tensor) -> torch.Tensor:
        places = torch.empty((len(grid_thw) * math.prod(grid), 2), dtype=torch.int64)
        turns: torch.Tensor = model.rotary_pos_emb(max(grid[1:]))
        return turns[places].flatten(1)

    stack.enter_context(replaced(encoder, "forward", forward))
    stack.enter_context(replaced(encoder, "rot_pos_emb", rotary))
    if not hasattr(encoder, "get_window_index"):
        return
    own_windows = encoder.get_window_index

    def windows(model: PreTrainedModel, grid_thw: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        with unset_fake_temporarily(), _disable_current_modes():
            index, borders = own_windows(model, torch.tensor([grid] * len(grid_thw)))
        # Those of empty windows are equal, and go next.
        return torch.empty(index.shape, dtype=index.dtype), sorted(set(borders))

    stack.enter_context(replaced(encoder, "get_window_index", windows))


def _put_back(batches: Sequence[Batch], tensors: Sequence[torch.Tensor]) -> None:
    for batch, tensor in zip(batches, tensors, strict=True):
        batch[GRID] = tensor


def _computed(function: Callable[..., Values], kinds: tuple[str, ...]) -> Callable[..., Values]:
    def compute(grid: numpy.ndarray, *args: object, **kwargs: object) -> Values:
        with unset_fake_temporarily(), _disable_current_modes():
            found = function(torch.tensor(grid.tolist()), *args, **kwargs)
            results = found if isinstance(found, tuple) else (found,)
            read = [_read(value, kind) for value, kind in zip(results, kinds, strict=True)]
        made = tuple(
            torch.empty(value.shape, dtype=value.dtype) if kind == "tensor" else value
            for value, kind in zip(read, kinds, strict=True)
        )
        return made if isinstance(found, tuple) else made[0]

    return compute


def _read(value: torch.Tensor, kind: str) -> torch.Tensor | numpy.ndarray:
    """Borders as an array."""
    import numpy

    if kind == "borders" and hasattr(value, "tolist"):
        return numpy.array(value.tolist())
    return value


def _numbering(asked: list[PreTrainedModel]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """`get_rope_index`: three positions for each token, and an offset for each row."""

    def positions(
        model: PreTrainedModel, input_ids: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, ...]:
        asked.append(model)
        return input_ids.new_zeros((3, *input_ids.shape)), input_ids.new_zeros((len(input_ids), 1))

    return positions


def _forget_positions(models: Sequence[PreTrainedModel]) -> None:
    """Drop the offsets that models keep, which would outlive the recording of a step."""
    for model in models:
        model.rope_deltas = None
