"""The rules that say why memory ran out: one row a rule.

Rules do not know each other. To add a cause, add a row; `causes` evaluates and ranks them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.diagnosis.causes import conditions as when
from oomdoctor.explain.diagnosis.causes import figures
from oomdoctor.explain.diagnosis.causes.conditions import beyond_by, beyond_card, scores_in_frame
from oomdoctor.records.job.measurement import CATEGORY_WORDS, BlockCategory
from oomdoctor.records.report.diagnosis import CauseName, Confidence


@dataclass(frozen=True, slots=True)
class Rule:
    """If `when` returns lines, `cause` applies with this confidence, and `remedies` may help.

    `why` is a sentence; `causes` fills in its {names} with sizes of the case. `remedies` are keys
    of `remedies.table`. `arithmetic` rules compare what the training needs with the GPU: no other
    cause is as sure. `detail` says what exactly, in a noun phrase.
    """

    cause: CauseName
    confidence: Confidence
    when: Callable[[Case], tuple[str, ...]]
    why: str
    remedies: tuple[str, ...]
    arithmetic: bool = False
    detail: str | None = None


SCORES = "attention scores"
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
_LESS_LOGITS = (
    "liger",
    "chunked",
    "smaller_batch",
    "completion_only",
    "shorter_sequence",
    "checkpointing",
)
_LESS_OF_ALL = ("liger", "chunked", "sdpa", "adamw_8bit", "fused_optimizer", "smaller_batch",
                "checkpointing", "paged_adamw", "half_weights", "shard", "offload_optimizer",
                "optimizer_in_backward", "lora", "qlora",
                "quantized_load", "device_map", "shorter_sequence", "bigger_card")  # fmt: skip
# Called for when no rule applies.
ANYTHING = ("give_more", "smaller_batch", "checkpointing", "shorter_sequence")
_LESS_STATE = ("adamw_8bit", "paged_adamw", "shard", "adafactor", "lora", "offload_optimizer")
_MORE_HOST_MEMORY = ("more_host_memory", "fewer_workers", "less_offload", "load_once")
_MORE_SHARED_MEMORY = ("shm_size", "fewer_workers", "file_system_sharing")
_LESS_WEIGHTS = ("half_weights", "shard", "qlora", "quantized_load", "device_map", "bigger_card")


# What a memory snapshot shows: the cause, its category and what makes it smaller.
_HELD: tuple[tuple[CauseName, BlockCategory, tuple[str, ...]], ...] = (
    ("activations", "activations", _LESS_ACTIVATIONS),
    ("logits", "logits", _LESS_LOGITS),
    ("optimizer_states", "optimizer", _LESS_STATE),
    ("gradients", "gradients", ("shard", "lora", "qlora")),
    ("weights", "weights", _LESS_WEIGHTS),
)


# Ranked by confidence; among equals the row higher up wins.
RULES: tuple[Rule, ...] = (
    # decided by the model and the settings: what the training needs is more than the GPU has
    Rule("logits", "high", beyond_by("logits"),
         "the training needs {total} {moment}, and the GPU has {capacity}; without the logits "
         "({logits}) it would fit",
         _LESS_LOGITS, arithmetic=True),
    Rule("activations", "high", beyond_by("activations"),
         "the training needs {total} {moment}, and the GPU has {capacity}; without the activations "
         "({activations}) it would fit",
         _LESS_ACTIVATIONS, arithmetic=True),
    Rule("capacity", "high", beyond_card,
         "{run} needs {total}{moment_too}, and the GPU has {capacity}",
         _LESS_OF_ALL, arithmetic=True),
    # decided by the figures of the message
    Rule("capacity", "high", figures.larger_than_card,
         "one allocation of {requested} is larger than the whole GPU ({capacity})",
         ("liger", "sdpa", "smaller_batch", "shorter_sequence", "chunk", "half_weights", "shard",
          "bigger_card")),
    Rule("other_process", "high", figures.others_decide,
         "other processes hold {others} of the GPU; without them, {requested} would have fit",
         ("stop_others", "other_card")),
    Rule("memory_fraction", "high", figures.fraction_binds,
         "the process may use only {allowed} of {capacity}; {free} was free",
         ("raise_fraction",)),
    Rule("fragmentation", "high", figures.badly_fragmented,
         "{unallocated} is reserved but unallocated, more than the {requested} requested, "
         "but in pieces that are too small",
         ("expandable_segments", "empty_cache")),
    Rule("fragmentation", "medium", figures.fragmented,
         "{unallocated} is reserved but unallocated, and {requested} was requested",
         ("expandable_segments", "empty_cache")),
    Rule("activations", "high", scores_in_frame,
         "the line that failed computes attention scores: eager attention stores a "
         "length x length matrix for each head of each sequence",
         ("sdpa", *_LESS_ACTIVATIONS), detail=SCORES),
    Rule("private_pool", "medium", figures.graph_pools,
         "{pools} is in private pools (CUDA graphs) that nothing else can use",
         ("no_cuda_graphs",)),
    Rule("private_pool", "low", figures.free_but_refused,
         "far more was free than requested, so a private memory pool or a limit may have refused "
         "the request",
         ("pool_limit", "stop_others")),
    # decided by the phase
    Rule("other_process", "high", when.log(r"on startup is less than desired GPU memory utiliz"),
         "less GPU memory was free at the start than vLLM was told to take; something else is "
         "using it",
         ("stop_others", "vllm_less", "other_card")),
    Rule("kv_cache", "high", when.dialect("vllm"),
         "the weights and the profiling run leave no room for the KV cache",
         ("vllm_utilization", "vllm_less", "vllm_length", "vllm_eager", "vllm_batch",
          "vllm_parallel", "stop_others")),
    Rule("kv_cache", "high", when.frame(r"cache_utils|past_key_value|DynamicCache|kv_cache",
                                    "generate"),
         "the KV cache grows with every generated token",
         ("fewer_tokens", "offload_cache", "smaller_generation", "no_grad")),
    Rule("duplicate_load", "medium", when.loads_twice,
         "a second copy of the weights is loaded while the first one is still on the GPU",
         ("load_on_cpu", "no_reference_copy", "half_weights")),
    Rule("weights", "high", when.loaded_wide,
         "the weights are loaded in 32 bits, which takes twice as much as 16 bits",
         ("half_weights", "quantized_load", "device_map")),
    Rule("eval_accumulation", "high",
         when.frame(r"nested_concat|pad_across|EvalLoopContainer|all_preds|nested_gather|all_logits"
                r"|gather_for_metrics|preds_host", "eval"),
         "evaluation keeps the predictions of all batches on the GPU until it ends",
         ("reduce_logits", "loss_only", "eval_to_host", "smaller_eval")),
    Rule("optimizer_states", "high", when.first_step,
         "the optimizer creates its states in its first step, after forward and backward fit",
         _LESS_STATE),
    # decided by a memory snapshot
    Rule("growth", "high", figures.left_behind,
         "each {unit} leaves about {left} behind, which nothing frees",
         ("detach", "empty_lists", "zero_grad_none")),
    *(Rule(cause, "high", figures.holds_most(category),
           f"{CATEGORY_WORDS[category]} are the largest part of the {{held}} needed at that moment",
           called)
      for cause, category, called in _HELD),
    *(Rule(cause, "medium", figures.holds_much(category),
           f"{CATEGORY_WORDS[category]} are a large part of the {{held}} needed at that moment",
           called)
      for cause, category, called in _HELD),
    Rule("optimizer_states", "medium", when.foreach,
         "the optimizer updates all tensors at once (foreach), which needs temporaries as large "
         "as the parameters",
         ("fused_optimizer", *_LESS_STATE)),
    Rule("optimizer_states", "medium", when.later_step,
         "the optimizer step needs memory on top of its states",
         ("fused_optimizer", *_LESS_STATE)),
    Rule("optimizer_states", "medium", when.at_phase("optimizer"),
         "it failed in the optimizer step, which creates states and temporaries",
         ("fused_optimizer", *_LESS_STATE)),
    Rule("logits", "high", when.tensor("logits", "loss", "forward", "backward", "eval", "unknown"),
         "the logits over the whole vocabulary did not fit",
         ("liger", "smaller_batch", "completion_only", "shorter_sequence", "checkpointing",
          "smaller_eval")),
    Rule("logits", "high", when.at_phase("loss"),
         "it failed while computing the loss, where the logits over the whole vocabulary are "
         "stored in 32 bits",
         _LESS_LOGITS),
    Rule("logits", "medium", when.logits_in_sight,
         "the innermost lines of the traceback work on the logits over the whole vocabulary",
         _LESS_LOGITS),
    Rule("gradients", "high", when.tensor("gradient", "backward", "clip"),
         "the gradient of the largest weight did not fit",
         ("half_weights", "shard", "lora", "smaller_batch", "checkpointing")),
    Rule("gradients", "medium", when.at_phase("clip"),
         "clipping works on all gradients at once",
         ("clip_loop", *_LESS_STATE, "smaller_batch")),
    Rule("growth", "high", when.grows,
         "memory grows by about {slope} per step: something from each step is kept",
         ("detach", "empty_lists", "zero_grad_none")),
    Rule("growth", "low", when.died_late,
         "{step} steps succeeded before this one",
         ("detach", "empty_lists")),
    Rule("long_batch", "medium", when.long_batch,
         "{step} steps succeeded before this one: the batch that failed was probably longer",
         ("longest_first", "shorter_sequence", "smaller_batch", "checkpointing", "liger")),
    Rule("activations", "high", when.tensor("attention scores"),
         "eager attention stores a length x length matrix for each head",
         ("sdpa", *_LESS_ACTIVATIONS), detail=SCORES),
    Rule("activations", "high", when.activations_largest,
         "activations saved for the backward pass are the largest part of the memory",
         _LESS_ACTIVATIONS),
    Rule("activations", "medium", when.at_phase("forward", "backward"),
         "it failed in the {phase} pass, where saved activations accumulate",
         _LESS_ACTIVATIONS),
    Rule("weights", "medium", when.at_phase("load"),
         "it failed while the weights were being loaded onto the GPU",
         _LESS_WEIGHTS),
    Rule("kv_cache", "medium", when.at_phase("generate"),
         "it failed during generation, where the KV cache grows",
         ("fewer_tokens", "offload_cache", "smaller_generation", "no_grad", "quantized_load")),
    Rule("activations", "medium", when.at_phase("eval"),
         "it failed in evaluation, whose batch and logits come on top of the training memory",
         ("smaller_eval", "no_grad", "reduce_logits", "loss_only")),
    Rule("duplicate_load", "medium",
         when.at_phase("save"),
         "saving gathers or copies the state on the GPU",
         ("sharded_save", "save_on_cpu")),
    Rule("growth", "low", when.kept_by_notebook,
         "a notebook keeps all variables of earlier cells and of the last error alive",
         ("restart_notebook",)),
    # not GPU memory
    Rule("shared_memory", "high", when.shm_full,
         "the DataLoader workers filled /dev/shm",
         _MORE_SHARED_MEMORY),
    Rule("shared_memory", "medium", when.bus_error,
         "a bus error: usually /dev/shm was full when a mapped file needed another page; "
         "`df -h /dev/shm` during the run confirms it",
         _MORE_SHARED_MEMORY),
    Rule("host_memory", "high", when.dialect("wsl_pinned"),
         "WSL limits pinned host memory",
         ("wsl_limit", "no_pinning")),
    Rule("host_memory", "high", when.dialect("slurm"),
         "the job exceeded the host memory that it requested from the scheduler",
         ("more_host_memory", "more_job_memory", "fewer_workers", "less_offload", "load_once",
          "sharded_save")),
    Rule("host_memory", "high", when.dialect("cpu_allocator", "numpy"),
         "an allocation of {requested} of host memory was refused",
         ("chunk", "load_half_host", "more_host_memory")),
    Rule("host_memory", "high", when.dialect("container"),
         "the container exceeded its memory limit (137 = 128 + SIGKILL)",
         _MORE_HOST_MEMORY),
    Rule("host_memory", "high", when.kernel_killed,
         "the kernel's OOM killer ended the process because host memory ran out",
         _MORE_HOST_MEMORY),
    Rule("host_memory", "medium", when.dialect("host_oom_killer", "dataloader_worker"),
         "a process was killed with signal 9 and no message, as the kernel does when host memory "
         "runs out; `dmesg` or `sacct` confirms it",
         ("confirm_kill", *_MORE_HOST_MEMORY)),
    Rule("host_memory", "medium", when.resource("host"),
         "host memory ran out, not GPU memory",
         _MORE_HOST_MEMORY),
    # messages without figures
    Rule("capacity", "medium", when.dialect("nccl"),
         "the GPU had no room left for NCCL's buffers, or several ranks share one GPU",
         ("one_rank_a_card", "leave_room", "smaller_batch")),
    Rule("capacity", "medium", when.dialect("cublas", "cudnn"),
         "the GPU was full when a library allocated its workspace",
         ("smaller_batch", "checkpointing", "check_labels")),
    Rule("other_process", "medium", when.dialect("cuda_driver"),
         "the driver refused before PyTorch could report usage: usually another process has "
         "filled the GPU, sometimes the GPU is faulty or an index is out of range",
         ("stop_others", "check_labels")),
    Rule("capacity", "medium", when.dialect("xla", "tpu"),
         "the compiled program needs more memory than the device has",
         ("xla_preallocate", "xla_donate", "smaller_batch", "checkpointing")),
    Rule("activations", "medium", when.dialect("tensorflow"),
         "a tensor of the graph did not fit",
         ("smaller_batch", "tf_growth")),
    Rule("weights", "medium", when.dialect("llamacpp"),
         "the layers and the context buffers do not fit on the GPU",
         ("llamacpp_layers", "llamacpp_context", "llamacpp_cache")),
    Rule("other_process", "medium", figures.shared_with_others,
         "a Mac shares its memory, and other allocations count against the same limit",
         ("mps_other", "smaller_batch", "half_weights")),
    Rule("capacity", "medium", when.dialect("mps"),
         "the model and its buffers exceed what macOS lets the GPU use",
         ("half_weights", "smaller_batch", "mps_other")),
    Rule("optimizer_states", "medium", when.dialect("bitsandbytes"),
         "bitsandbytes could not allocate its buffers",
         ("smaller_batch", "paged_adamw", "stop_others")),
    # weak evidence
    Rule("other_process", "medium", figures.others_hold,
         "other processes hold {others} of the GPU",
         ("stop_others", "other_card")),
    Rule("memory_fraction", "low", figures.fraction_set,
         "the process may use only {allowed} of {capacity}",
         ("raise_fraction",)),
    Rule("capacity", "low", figures.needs_most,
         "the request alone is a large part of the GPU",
         ("smaller_batch", "shorter_sequence", "liger", "sdpa", "chunk")),
    Rule("capacity", "low", figures.fills_card,
         "all but {free} of {capacity} is in use; the log does not say by what",
         ("smaller_batch", "checkpointing", "sdpa", "liger", "adamw_8bit", "half_weights",
          "shorter_sequence")),
)  # fmt: skip
