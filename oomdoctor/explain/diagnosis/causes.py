"""Why memory ran out: one table of rules, each a condition, a cause and the remedies it calls for.

A condition returns the lines that speak for it, or nothing. Rules do not know each other: every
one that holds gives a cause, and the ranking is by confidence, then by the order of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oomdoctor.explain.diagnosis import conditions as when
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.records.diagnosis import Cause, CauseName, Confidence
from oomdoctor.units import format_bytes


@dataclass(frozen=True, slots=True)
class Rule:
    """If `when` finds lines, `cause` holds with this confidence, because `why`; then `remedies`.

    `why` is a sentence in which {names} stand for sizes of the case, filled by `_figures_of`.
    `remedies` are keys of the table in `remedy_table`.
    """

    cause: CauseName
    confidence: Confidence
    when: Callable[[Case], tuple[str, ...]]
    why: str
    remedies: tuple[str, ...]


_LESS_ACTIVATIONS = (
    "liger",
    "sdpa",
    "checkpointing",
    "smaller_batch",
    "offload_activations",
    "shorter_sequence",
    "shard",
    "lora",
    "qlora",
)
_ANYTHING = ("give_more", "smaller_batch", "checkpointing", "shorter_sequence")
_LESS_STATE = ("adamw_8bit", "paged_adamw", "shard", "adafactor", "lora", "offload_optimizer")
_LESS_WEIGHTS = ("half_weights", "shard", "qlora", "quantised_load", "device_map", "bigger_card")


# Ranked by confidence first; among equals a row higher up wins.
RULES: tuple[Rule, ...] = (
    # what the figures of the message settle
    Rule("capacity", "high", when.larger_than_card,
         "one allocation of {requested} is larger than the whole card ({capacity})",
         ("liger", "sdpa", "smaller_batch", "shorter_sequence", "chunk", "half_weights", "shard",
          "bigger_card")),
    Rule("other_process", "high", when.others_decide,
         "other processes hold {others} of the card; without them {requested} would have fitted",
         ("stop_others", "other_card")),
    Rule("memory_fraction", "high", when.fraction_binds,
         "the process may use only {allowed} of {capacity}; {free} were free",
         ("raise_fraction",)),
    Rule("fragmentation", "high", when.badly_fragmented,
         "{unallocated} are reserved but not allocated, more than the {requested} asked for, "
         "in pieces that are too small",
         ("expandable_segments", "empty_cache")),
    Rule("fragmentation", "medium", when.fragmented,
         "{unallocated} are reserved but not allocated, and {requested} were asked for",
         ("expandable_segments", "empty_cache")),
    Rule("private_pool", "medium", when.graph_pools,
         "{pools} lie in private pools (CUDA graphs), which nothing else may use",
         ("no_cuda_graphs",)),
    Rule("private_pool", "low", when.free_but_refused,
         "{free} were free and still {requested} was refused: a memory pool of its own, a limit, "
         "or memory that came free in between",
         ("pool_limit", "stop_others")),
    # what model and settings settle
    Rule("capacity", "high", when.states_beyond_card,
         "weights, gradients and optimizer states alone are above the card's {capacity}",
         ("adamw_8bit", "paged_adamw", "half_weights", "shard", "lora", "qlora",
          "offload_optimizer", "bigger_card")),
    Rule("capacity", "high", when.weights_beyond_card,
         "the weights alone are above the card's {capacity}",
         _LESS_WEIGHTS),
    # what the moment settles
    Rule("other_process", "high", when.log(r"on startup is less than desired GPU memory utiliz"),
         "less of the card was free at the start than vLLM is told to take: something else holds "
         "it",
         ("stop_others", "vllm_less", "other_card")),
    Rule("kv_cache", "high", when.dialect("vllm"),
         "weights and the profiling run leave no room for the KV cache",
         ("vllm_utilization", "vllm_less", "vllm_length", "vllm_eager", "vllm_batch",
          "vllm_parallel", "stop_others")),
    Rule("kv_cache", "high", when.frame(r"cache_utils|past_key_value|DynamicCache|kv_cache",
                                    "generate"),
         "the cache of keys and values grows with every token that is generated",
         ("fewer_tokens", "offload_cache", "smaller_generation", "no_grad")),
    Rule("duplicate_load", "medium", when.loads_twice,
         "a second copy is put on the card while the first one is there",
         ("load_on_cpu", "no_reference_copy", "half_weights")),
    Rule("weights", "high", when.loaded_wide,
         "the weights are loaded in 32 bits, twice what 16 bits take",
         ("half_weights", "quantised_load", "device_map")),
    Rule("eval_accumulation", "high",
         when.frame(r"nested_concat|pad_across|EvalLoopContainer|all_preds|nested_gather|all_logits"
                r"|gather_for_metrics|preds_host", "eval"),
         "evaluation keeps the predictions of all batches on the card until its end",
         ("reduce_logits", "loss_only", "eval_to_host", "smaller_eval")),
    Rule("optimizer_states", "high", when.first_step,
         "the optimizer's states are born in the first step, after forward and backward fitted",
         _LESS_STATE),
    Rule("optimizer_states", "medium", when.foreach,
         "the optimizer works on all tensors at once (foreach) and needs temporaries as large as "
         "the parameters",
         ("fused_optimizer", *_LESS_STATE)),
    Rule("optimizer_states", "medium", when.later_step,
         "the step comes on top of the states that are there",
         ("fused_optimizer", *_LESS_STATE)),
    Rule("optimizer_states", "medium", when.at_phase("optimizer"),
         "it happened in the optimizer step, where states are born and temporaries made",
         ("fused_optimizer", *_LESS_STATE)),
    Rule("logits", "high", when.tensor("logits", "loss", "forward", "backward", "eval", "unknown"),
         "the logits of the whole vocabulary did not fit",
         ("liger", "smaller_batch", "completion_only", "shorter_sequence", "checkpointing",
          "smaller_eval")),
    Rule("logits", "high", when.at_phase("loss"),
         "it happened while computing the loss, where logits of the whole vocabulary lie in "
         "32 bits",
         ("liger", "smaller_batch", "completion_only", "shorter_sequence", "checkpointing")),
    Rule("logits", "medium", when.logits_in_sight,
         "the innermost lines work on the logits of the whole vocabulary",
         ("liger", "smaller_batch", "completion_only", "shorter_sequence", "checkpointing")),
    Rule("gradients", "high", when.tensor("gradient", "backward", "clip"),
         "the gradient of the largest weight did not fit",
         ("half_weights", "shard", "lora", "smaller_batch", "checkpointing")),
    Rule("gradients", "medium", when.at_phase("clip"),
         "clipping works on all gradients at once",
         ("clip_loop", *_LESS_STATE, "smaller_batch")),
    Rule("growth", "high", when.grows,
         "memory rises by about {slope} a step: something of each step is kept",
         ("detach", "empty_lists", "zero_grad_none")),
    Rule("growth", "low", when.died_late,
         "{step} steps went well before this one",
         ("detach", "empty_lists")),
    Rule("long_batch", "medium", when.long_batch,
         "{step} steps went well before this one: the batch that died was probably longer",
         ("longest_first", "shorter_sequence", "smaller_batch", "checkpointing", "liger")),
    Rule("activations", "high", when.tensor("attention scores"),
         "eager attention keeps a square of the sequence length for each head",
         ("sdpa", *_LESS_ACTIVATIONS)),
    Rule("activations", "high", when.activations_largest,
         "what the layers keep for the backward pass is the largest part of the memory",
         _LESS_ACTIVATIONS),
    Rule("activations", "medium", when.at_phase("forward", "backward"),
         "it happened in the {phase} pass, where what the layers keep piles up",
         _LESS_ACTIVATIONS),
    Rule("weights", "medium", when.at_phase("load"),
         "it happened while the weights were put on the card",
         _LESS_WEIGHTS),
    Rule("kv_cache", "medium", when.at_phase("generate"),
         "it happened while generating, where the cache of keys and values grows",
         ("fewer_tokens", "offload_cache", "smaller_generation", "no_grad", "quantised_load")),
    Rule("activations", "medium", when.at_phase("eval"),
         "it happened in evaluation, whose batch and logits come on top of the training's memory",
         ("smaller_eval", "no_grad", "reduce_logits", "loss_only")),
    Rule("duplicate_load", "medium",
         when.at_phase("save"),
         "saving gathers or copies the state on the card",
         ("sharded_save", "save_on_cpu")),
    Rule("growth", "low", when.kept_by_notebook,
         "a notebook keeps everything of earlier cells, and of the last error",
         ("restart_notebook",)),
    # not the card
    Rule("shared_memory", "high", when.shm_full,
         "the workers of the data loader filled /dev/shm",
         ("shm_size", "fewer_workers", "file_system_sharing")),
    Rule("shared_memory", "medium", when.bus_error,
         "a bus error: mostly a mapped file, of /dev/shm as a rule, had no room for a page; "
         "`df -h /dev/shm` during the run would settle it",
         ("shm_size", "fewer_workers", "file_system_sharing")),
    Rule("host_memory", "high", when.dialect("wsl_pinned"),
         "pinned host memory is limited under WSL",
         ("wsl_limit", "no_pinning")),
    Rule("host_memory", "high", when.dialect("slurm"),
         "the job went over the host memory it had asked the scheduler for",
         ("more_host_memory", "more_job_memory", "fewer_workers", "less_offload", "load_once",
          "sharded_save")),
    Rule("host_memory", "high", when.dialect("cpu_allocator", "numpy"),
         "one allocation of {requested} of host memory was refused",
         ("chunk", "load_half_host", "more_host_memory")),
    Rule("host_memory", "high", when.dialect("container"),
         "the container went over its memory limit (137 = 128 + SIGKILL)",
         ("more_host_memory", "fewer_workers", "less_offload", "load_once")),
    Rule("host_memory", "high", when.kernel_killed,
         "the kernel killed the process to save the machine",
         ("more_host_memory", "fewer_workers", "less_offload", "load_once")),
    Rule("host_memory", "medium", when.dialect("host_oom_killer", "dataloader_worker"),
         "a process was killed with signal 9 without a word, as the kernel does when host memory "
         "is out; `dmesg` or `sacct` would settle it",
         ("confirm_kill", "more_host_memory", "fewer_workers", "less_offload", "load_once")),
    Rule("host_memory", "medium", when.resource("host"),
         "the memory of the host ran out, not the card's",
         ("more_host_memory", "fewer_workers", "less_offload", "load_once")),
    # messages without figures
    Rule("capacity", "medium", when.dialect("nccl"),
         "the card had no room left for NCCL's own buffers, or several ranks sit on one card",
         ("one_rank_a_card", "leave_room", "smaller_batch")),
    Rule("capacity", "medium", when.dialect("cublas", "cudnn"),
         "the card was full when a library wanted its workspace",
         ("smaller_batch", "checkpointing", "check_labels")),
    Rule("other_process", "medium", when.dialect("cuda_driver"),
         "the driver refused before PyTorch could say how much is held: mostly the card is full "
         "with another process, sometimes a sick card or an index out of range",
         ("stop_others", "check_labels")),
    Rule("capacity", "medium", when.dialect("xla", "tpu"),
         "the compiled program needs more than the device has",
         ("xla_preallocate", "xla_donate", "smaller_batch", "checkpointing")),
    Rule("activations", "medium", when.dialect("tensorflow"),
         "a tensor of the graph did not fit",
         ("smaller_batch", "tf_growth")),
    Rule("weights", "medium", when.dialect("llamacpp"),
         "layers and the context's buffers do not fit on the card",
         ("llamacpp_layers", "llamacpp_context", "llamacpp_cache")),
    Rule("other_process", "medium", when.shared_with_others,
         "the Mac's memory is shared, and other allocations count against the same limit",
         ("mps_other", "smaller_batch", "half_weights")),
    Rule("capacity", "medium", when.dialect("mps"),
         "the model and its buffers are above what the Mac lends to the GPU",
         ("half_weights", "smaller_batch", "mps_other")),
    Rule("optimizer_states", "medium", when.dialect("bitsandbytes"),
         "bitsandbytes could not get its buffers",
         ("smaller_batch", "paged_adamw", "stop_others")),
    # what is left
    Rule("other_process", "medium", when.others_hold,
         "other processes hold {others} of the card",
         ("stop_others", "other_card")),
    Rule("memory_fraction", "low", when.fraction_set,
         "the process may use only {allowed} of {capacity}",
         ("raise_fraction",)),
    Rule("capacity", "low", when.needs_most,
         "the request alone is a large part of the card",
         ("smaller_batch", "shorter_sequence", "liger", "sdpa", "chunk")),
    Rule("capacity", "low", when.fills_card,
         "all but {free} of {capacity} are in use; the text does not tell for what",
         ("smaller_batch", "checkpointing", "sdpa", "liger", "adamw_8bit", "half_weights",
          "shorter_sequence")),
)  # fmt: skip

_ORDER: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}


def causes(case: Case) -> tuple[tuple[Cause, ...], dict[str, int]]:
    """The causes of an incident, the likeliest first, and the keys of the remedies they call for.

    Each cause once, with its strongest rule. `unknown` when no rule holds. A key comes with the
    confidence of the cause that calls for it: 0 high, 1 medium, 2 low.
    """
    found: dict[str, tuple[int, int, Cause, tuple[str, ...]]] = {}
    for place, rule in enumerate(RULES):
        lines = rule.when(case)
        if not lines:
            continue
        rank = (_ORDER[rule.confidence], place)
        if rule.cause in found and found[rule.cause][:2] <= rank:
            continue
        why = rule.why.format(**_figures_of(case))
        cause = Cause(rule.cause, rule.confidence, tuple(dict.fromkeys(lines)), why)
        found[rule.cause] = (*rank, cause, rule.remedies)
    if not found:
        why = "the text does not tell enough to name one"
        return (Cause("unknown", "low", case.figures(), why),), dict.fromkeys(_ANYTHING, 2)
    ranked = sorted(found.values(), key=lambda item: item[:2])
    # What a mere possibility calls for would drown the answer to what is likely.
    likely = [item for item in ranked if item[2].confidence != "low"] or ranked
    keys: dict[str, int] = {}
    for confidence, _, _, called in likely:
        for key in called:
            keys.setdefault(key, confidence)
    return tuple(item[2] for item in ranked), keys


def _figures_of(case: Case) -> dict[str, str]:
    slope = when.growth_per_step(case.samples())
    return {
        "requested": format_bytes(case.requested),
        "capacity": format_bytes(case.capacity),
        "free": format_bytes(case.free),
        "others": format_bytes(case.others),
        "allowed": format_bytes(case.incident.event.allowed_bytes),
        "unallocated": format_bytes(case.unallocated),
        "reserved": format_bytes(case.reserved),
        "pools": format_bytes(case.incident.event.private_pools_bytes),
        "step": str(case.step or 0),
        "phase": case.phase,
        "slope": format_bytes(None if slope is None else round(slope)),
    }
