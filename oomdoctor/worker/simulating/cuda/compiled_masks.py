"""Build the attention masks of a compiled model, as transformers does while Dynamo traces it.

A causal mask that masks nothing else is left out, which lets sdpa run FlashAttention. Whether it
can be left out depends on values: of the batch's mask, or of positions if the batch has no mask.
Traced code cannot read values, so a compiled model has a mask of all pairs of tokens, no
`is_causal`, and repeated keys and values (masking_utils.py `_ignore_causal_mask_sdpa`,
`_ignore_bidirectional_mask_sdpa` and `find_packed_sequence_indices` of transformers 4.53-5.24,
modeling_attn_mask_utils.py before; integrations/sdpa_attention.py `use_gqa_in_sdpa`).

Each call of sdpa makes an additive mask of the boolean one. In a compiled graph there is one for
all layers, because equal operators are merged (torch/_functorch/compile_utils.py `fx_graph_cse`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from oomdoctor.worker.replacing import module_if_there, replaced, restored
from oomdoctor.worker.simulating.cuda.attention import share_additive
from oomdoctor.worker.training.inspection import torch_release

Maker = Callable[..., torch.Tensor | None]  # None where the mask can be left out
_MODULES = ("transformers.masking_utils", "transformers.modeling_attn_mask_utils")


@contextmanager
def as_traced() -> Iterator[None]:
    """Let transformers' masks see inside the context what they see while Dynamo traces them."""
    answers = {
        "is_tracing": True,
        "is_torchdynamo_compiling": True,
        # Dynamo says so of all that it compiles, up to torch 2.11 (pytorch pull 176499).
        "is_torchdynamo_exporting": (2, 7) <= torch_release() < (2, 12),
    }
    with ExitStack() as stack:
        for module in filter(None, map(module_if_there, _MODULES)):
            for name, answer in answers.items():
                if hasattr(module, name):
                    # Nothing is traced here.
                    stack.enter_context(replaced(module, name, lambda *_, said=answer: said))
        yield


@contextmanager
def simulated_masks() -> Iterator[None]:
    """The masks of a compiled model, with one additive mask for all layers."""
    masks = module_if_there("transformers.masking_utils")
    with ExitStack() as stack:
        stack.enter_context(as_traced())
        if masks is not None:
            makers = masks.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
            # The layers would each make their own.
            stack.enter_context(restored(makers, {"sdpa": _shared(makers["sdpa"])}))
        yield


def _shared(make: Maker) -> Maker:
    """`make`, with the additive mask beside a boolean one: outside of all layers."""

    def made(
        *args: object, dtype: torch.dtype = torch.float32, **kwargs: object
    ) -> torch.Tensor | None:
        mask = make(*args, dtype=dtype, **kwargs)
        if mask is not None and mask.dtype == torch.bool:
            autocast = torch.is_autocast_enabled("cpu")
            share_additive(mask, torch.get_autocast_dtype("cpu") if autocast else dtype)
        return mask

    return made
