"""All remedies by key. The rules in `diagnosis.cause_rules` refer to them by these keys."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.activations import ACTIVATION_ROWS
from oomdoctor.explain.remedies.host_memory import HOST_MEMORY_ROWS
from oomdoctor.explain.remedies.optimizer_and_gradients import OPTIMIZER_ROWS
from oomdoctor.explain.remedies.row import Row, always, difference, held, rule, setting
from oomdoctor.explain.remedies.weights import WEIGHT_ROWS


def _vllm_wants_too_much(case: Case) -> bool:
    """Whether vLLM's share of the GPU is too large, not too small for the KV cache."""
    return bool(case.logged(r"less than desired GPU memory|warming up sampler"))


GENERATION_ROWS: tuple[Row, ...] = (
    Row("fewer_tokens", 5, "Generate fewer tokens, or use shorter prompts", always,
        rule("the KV cache grows with each token"),
        {"transformers": "model.generate(..., max_new_tokens=256)"}),
    Row("offload_cache", 3, "Keep the KV cache in host memory, layer by layer", always,
        rule("same result, slower"),
        {"transformers": 'model.generate(..., cache_implementation="offloaded")'}),
    Row("smaller_generation", 2, "Generate fewer sequences at once",
        lambda case: case.setup.eval_batch_size != 1,
        rule("the KV cache grows with each sequence and beam"),
        {"transformers": "model.generate(..., num_beams=1)  # and smaller batches"}),
    Row("vllm_utilization", 0, "Let vLLM use more of the GPU",
        lambda case: not _vllm_wants_too_much(case),
        rule("the default is 0.90; each 0.01 is 1% of the GPU"),
        {"vllm": "--gpu-memory-utilization 0.95"}),
    Row("vllm_less", 0, "Let vLLM use less of the GPU", _vllm_wants_too_much,
        rule("vLLM's share of the GPU must be free at the start, plus some room"),
        {"vllm": "--gpu-memory-utilization 0.80"}),
    Row("vllm_length", 5, "Use a shorter context", always,
        rule("one full-length sequence must fit into the KV cache"),
        {"vllm": "--max-model-len 8192"}),
    Row("vllm_eager", 3, "Turn off CUDA graphs", always, rule("the graphs take 1 to 3 GiB"),
        {"vllm": "--enforce-eager"}),
    Row("vllm_batch", 2, "Use a smaller profiling batch", always,
        rule("the profiling run allocates activations for this many tokens"),
        {"vllm": "--max-num-batched-tokens 8192 --max-num-seqs 64"}),
    Row("vllm_parallel", 7, "Use more GPUs, or quantized weights", always,
        rule("the weights are split across the GPUs"),
        {"vllm": "--tensor-parallel-size 2  # or --quantization fp8"}),
    Row("llamacpp_layers", 2, "Put fewer layers on the GPU", always,
        rule("each layer on the CPU frees its weights and its KV cache"),
        {"llamacpp": "-ngl N  # lower until it loads"}),
    Row("llamacpp_context", 4, "Use a shorter context", always,
        rule("the KV cache and compute buffers grow with it"), {"llamacpp": "-c 4096 -ub 256"}),
    Row("llamacpp_cache", 3, "Quantize the KV cache", always, rule("halves the KV cache"),
        {"llamacpp": "-fa on -ctk q8_0 -ctv q8_0"}),
)  # fmt: skip


LIBRARY_ROWS: tuple[Row, ...] = (
    Row("one_rank_a_card", 0, "Bind each rank to its own GPU", always,
        rule("ranks that share GPU 0 fill it with their CUDA contexts"),
        {"pytorch": 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
         "shell": "torchrun --nproc-per-node NUMBER_OF_GPUS"}),
    Row("leave_room", 1, "Leave room for NCCL's buffers", always,
        rule("several process groups take 0.5 to 1.5 GiB per GPU"),
        {"shell": "export NCCL_BUFFSIZE=2097152",
         "jax": "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.85"}),
    Row("check_labels", 3, "Rule out other errors that produce the same message",
        lambda case: not case.requested,
        rule("CUDA runs asynchronously, so an out-of-range index can surface here"),
        {"shell": "CUDA_LAUNCH_BLOCKING=1 python train.py  # once, to see the real line"}),
    Row("xla_preallocate", 0, "Stop JAX from reserving the GPU at startup",
        lambda case: case.dialect == "xla",
        rule("JAX reserves 75% at startup and leaves little for other libraries"),
        {"jax": "export XLA_PYTHON_CLIENT_PREALLOCATE=false"}),
    Row("xla_donate", 1, "Donate arguments that are not used again", always,
        rule("a step then needs one copy of the state, not two"),
        {"jax": "jax.jit(step, donate_argnums=(0,))"}),
    Row("tf_growth", 4, "Let TensorFlow allocate memory as needed", always,
        rule("leaves the rest to other libraries"),
        {"tensorflow": "tf.config.experimental.set_memory_growth(gpu, True)"}),
    Row("mps_other", 2, "Close other applications that use the GPU", always,
        rule("on a Mac all applications share the memory"),
        {"pytorch": "torch.mps.empty_cache()",
         "shell": "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0  # lifts the limit; the Mac may swap"}),
    Row("restart_notebook", 0, "Restart the notebook kernel", always,
        rule("variables of earlier cells and the last traceback keep their tensors alive"),
        {"pytorch": "del model, optimizer; gc.collect(); torch.cuda.empty_cache()"}),
    Row("give_more", 9, "Give explain more information", always,
        rule("the full traceback, the model and the sizes say more"),
        {"shell": "oomdoctor explain LOG --model MODEL --seq-len N --micro-batch N"}),
)  # fmt: skip


LEAK_ROWS: tuple[Row, ...] = (
    Row("detach", 0, "Keep numbers, not tensors: a stored loss keeps its whole graph", always,
        rule("each stored loss keeps all activations of its step"),
        {"pytorch": "total += loss.item()  # or loss.detach()"}),
    Row("empty_lists", 0, "Move stored outputs to the CPU, or drop them after each step", always,
        rule("a list of outputs grows by one batch per step"),
        {"pytorch": "outputs.append(output.detach().cpu())"}),
    Row("zero_grad_none", 0, "Free the gradients after each step",
        lambda case: not case.shows(r"transformers/trainer\.py"),
        rule("gradients that are only zeroed keep their memory"),
        {"pytorch": "optimizer.zero_grad(set_to_none=True)"}),
    Row("longest_first", 0, "Run the longest batch first, to fail early", always,
        rule("if that batch fits, all of them fit"),
        {"pytorch": 'dataset = dataset.sort("length", reverse=True)  # for one step',
         "transformers": 'TrainingArguments(train_sampling_strategy="group_by_length")  # the '
                         "longest batch first; in transformers 4: group_by_length=True"}),
    Row("reduce_logits", 0, "Reduce the logits before they are gathered",
        lambda case: case.phase == "eval",
        rule("one number per token instead of one per vocabulary entry"),
        {"transformers": "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: "
                         "logits.argmax(-1))"}),
    Row("loss_only", 1, "Evaluate the loss only", lambda case: case.phase == "eval",
        rule("no predictions are stored"),
        {"transformers": "TrainingArguments(prediction_loss_only=True)"}),
    Row("eval_to_host", 2, "Move predictions to host memory every few steps",
        lambda case: case.phase == "eval" and case.setup.eval_accumulation_steps is None,
        rule("frees the GPU and fills host memory instead"),
        {"transformers": "TrainingArguments(eval_accumulation_steps=8)"}),
    Row("smaller_eval", 1, "Use a smaller evaluation batch",
        lambda case: case.phase == "eval" and case.setup.eval_batch_size != 1,
        lambda case: difference(case, {}, "no gradients involved; only the speed changes", 0.5),
        {"transformers": "TrainingArguments(per_device_eval_batch_size=1)",
         "trl": "SFTConfig(per_device_eval_batch_size=1)",
         "pytorch": "DataLoader(eval_set, batch_size=1)"},
        "the default is 8, regardless of the training batch"),
    Row("no_grad", 0, "Evaluate and generate without gradients",
        lambda case: not case.shows(r"train|backward|loss|transformers/generation") and case.grads,
        rule("otherwise activations are saved for a backward pass that never runs"),
        {"pytorch": "with torch.inference_mode(): ..."}),
)  # fmt: skip


def _unlike_windows(case: Case) -> bool:
    return not case.shows(r'File "[A-Za-z]:[\\/]') and case.dialect == "cuda_caching_allocator"


def _gaps_cover(case: Case) -> bool:
    """Whether reserved but unallocated memory would cover the request."""
    covers = (case.unallocated or 0) >= (case.requested or 1)
    return covers and _unlike_windows(case) and case.setup.allocator != "expandable_segments"


CARD_ROWS: tuple[Row, ...] = (
    Row("stop_others", 0, "Stop the other process that is using the GPU",
        lambda case: bool(case.others) or case.capacity is None,
        lambda case: held(case.others, "held by other processes"),
        {"shell": "nvidia-smi; fuser -v /dev/nvidia*; kill PID"},
        "fuser finds processes that nvidia-smi does not list, such as an old notebook"),
    Row("other_card", 1, "Use a free GPU", lambda case: (case.others or 0) > 0,
        lambda case: held(case.others, "held by other processes on this GPU"),
        {"shell": "CUDA_VISIBLE_DEVICES=N python train.py"}),
    Row("raise_fraction", 0, "Raise or remove the memory fraction (now $share of the GPU)",
        lambda case: case.incident.event.allowed_bytes is not None,
        lambda case: held(max(0, (case.capacity or 0)
                                    - (case.incident.event.allowed_bytes or 0)) or None,
                          "off limits to this process"),
        {"pytorch": "torch.cuda.set_per_process_memory_fraction(1.0)"}),
    setting("expandable_segments", 0, "Turn on expandable segments", _gaps_cover,
        lambda case: held(case.unallocated, "reserved but unallocated memory that becomes usable"),
        {"shell": "export $alloc_conf=expandable_segments:True",
         "pytorch": "set it before torch is imported"}, allocator="expandable_segments"),
    Row("empty_cache", 1, "Empty the cache between parts of the program that alternate",
        lambda case: (case.unallocated or 0) >= (case.requested or 1),
        rule("helps only if two parts of the program take turns and allocate very different sizes"),
        {"pytorch": "torch.cuda.empty_cache()",
         "transformers": "TrainingArguments(torch_empty_cache_steps=10)"}),
    Row("no_cuda_graphs", 2, "Turn off CUDA graphs", always,
        lambda case: held(case.incident.event.private_pools_bytes, "in private pools"),
        {"pytorch": 'torch.compile(model, mode="default")', "vllm": "--enforce-eager"}),
    Row("pool_limit", 1, "Look for a memory limit or a private pool in the program", always,
        rule("torch.cuda.MemPool, set_per_process_memory_fraction, a container's limit"),
        {"shell": "grep -rn 'MemPool\\|memory_fraction' ."}),
    Row("bigger_card", 8, "Use a GPU with more memory",
        lambda case: case.incident.resource == "gpu",
        rule("`oomdoctor probe $model --vram SIZE` shows whether a given size is enough"), {}),
)  # fmt: skip


_ROWS = (
    *CARD_ROWS,
    *ACTIVATION_ROWS,
    *OPTIMIZER_ROWS,
    *WEIGHT_ROWS,
    *LEAK_ROWS,
    *HOST_MEMORY_ROWS,
    *GENERATION_ROWS,
    *LIBRARY_ROWS,
)
TABLE = {row.key: row for row in _ROWS}
