"""The kinds of growth in a memory snapshot: what they look like, and what helps."""

from __future__ import annotations

from typing import NamedTuple

from oomdoctor.records.inside.snapshot import GrowthKind


class Growth(NamedTuple):
    """`looks_like` says what is kept, `remedy` what to do."""

    looks_like: str
    remedy: str


GROWTH: dict[GrowthKind, Growth] = {
    "graph": Growth(
        "a loss or an output is kept together with its graph",
        "keep loss.detach() or loss.item(), and put evaluation under torch.no_grad()",
    ),
    "outputs": Growth(
        "outputs of the model are kept",
        "keep output.detach().cpu(), or only the part that you need",
    ),
    "activations": Growth(
        "activations of a layer are kept, as a forward hook or a list does",
        "keep activation.detach().cpu(), and remove the hook with handle.remove()",
    ),
    "optimizer": Growth(
        "new parameters get gradients and optimizer states again and again",
        "call add_param_group once for each parameter, and make a new optimizer to drop old ones",
    ),
    "evaluation": Growth(
        "an evaluation collects its outputs on the GPU",
        "move each output to the CPU; with transformers, set eval_accumulation_steps=1 or reduce "
        "them in preprocess_logits_for_metrics",
    ),
    "kv_cache": Growth(
        "keys and values (past_key_values) are kept",
        "start each sequence with a new cache, and train with use_cache=False",
    ),
    "tensors": Growth(
        "tensors that this line makes are kept, in a list or an attribute",
        "keep tensor.detach().cpu(), or delete what is no longer needed",
    ),
    "exception": Growth(
        "the traceback of a caught out-of-memory error keeps the tensors of the failed step",
        "do not keep the error, or call traceback.clear_frames(error.__traceback__); clear "
        "sys.last_traceback in a notebook",
    ),
    "fragmentation": Growth(
        "nothing is kept: the pieces that become free are too small for later requests",
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    "unknown": Growth(
        "the history has no Python stacks that could say more",
        'record it with torch.cuda.memory._record_memory_history(stacks="python")',
    ),
}
