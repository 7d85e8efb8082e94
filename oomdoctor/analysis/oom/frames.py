"""Frames of tracebacks in every shape they are printed in, and the phase they tell.

The phase is the innermost meaning: the first frame from the inside that a row of the table knows.
A forward pass or a loss belongs to what it is run for: a backward pass that recomputes it, an
evaluation, a generation or a start-up around it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.records.diagnosis import Frame, ReadPhase

_PYTHON = re.compile(
    r"File \"([^\"\n]{1,500})\",? line (\d{1,7})(?:,? in ((?:[\w.<>-]|\\_)+)(?=$|\W))?"
)
_IPYTHON = re.compile(
    r"(?:File )?(\S{1,400}?):(\d{1,7}),? in ([\w.<>]+)(?:\(.*)?$"  # also rich
)
_CELL = re.compile(r"(?:Cell |Input )?In ?\[(\d+)\](?:, line (\d+))?(?:, in ([^(]+).*)?$")
_OLD_IPYTHON = re.compile(r"(\S{1,400}\.py|<ipython-input-\S+>) in ([\w.<>]+)(?:\(.*)?$")
_BARE = re.compile(r"(\S{1,400}\.py),? line (\d{1,7}),? in (\w+)")
_ARROW = re.compile(r"(?:-+>|❱) *(\d{1,7})(?: ?│)?[ │]*(.*)$")
_NUMBERED = re.compile(r"\d{1,7}(?: ?│)?(?: .*)?$|\(\.\.\.\)")
_CARETS = re.compile(r"[\s~^-]+$")
_MARKDOWN = re.compile(r"\\([_*<>\[\]])")
_LONGEST_LINE = 4000
_START = re.compile(r"Traceback \(most recent call last\)|Traceback \(innermost last\)|stack trace")


def frame_in(text: str) -> Frame | None:
    """The frame that a line names, without its quoted source line; None for any other line."""
    stripped = text[:_LONGEST_LINE].strip()
    if "\\" in stripped:
        stripped = _MARKDOWN.sub(r"\1", stripped)
    if 'File "' in stripped:
        # Several where ranks wrote into one line at once: the last is the innermost.
        places = list(_PYTHON.finditer(stripped))
        if places:
            place = places[-1]
            return Frame(place[1].replace("\\", "/"), int(place[2]), place[3] or "<module>", None)
    if " in " in stripped or stripped.startswith(("Cell In", "Input In", "In [")):
        match = _CELL.match(stripped)
        if match is not None:
            line = int(match[2]) if match[2] else None
            return Frame(f"Cell In[{match[1]}]", line, (match[3] or "<module>").strip(), None)
        match = _IPYTHON.match(stripped)
        if match is not None:
            return Frame(match[1].replace("\\", "/"), int(match[2]), match[3], None)
        match = _OLD_IPYTHON.match(stripped)
        if match is not None:
            return Frame(match[1], None, match[2], None)
        match = _BARE.search(stripped)
        if match is not None:
            return Frame(match[1], int(match[2]), match[3], None)
    return None


def frames_in(texts: Sequence[str]) -> tuple[Frame, ...]:
    """The frames of one traceback with their quoted source, outermost first."""
    found: list[Frame] = []
    open_frame = False
    for text in texts:
        frame = frame_in(text)
        if frame is not None:
            found.append(frame)
            open_frame = True
            continue
        if not found:
            continue
        stripped = text.strip()
        arrow = _ARROW.match(stripped)
        if arrow is not None:
            last = found[-1]
            found[-1] = Frame(last.file, int(arrow[1]), last.function, arrow[2].strip() or None)
            open_frame = False
        elif open_frame and stripped and not (_CARETS.match(stripped) or _NUMBERED.match(stripped)):
            found[-1] = _with_code(found[-1], stripped)
            open_frame = False
    return tuple(found)


def _with_code(frame: Frame, code: str) -> Frame:
    return Frame(frame.file, frame.line, frame.function, _MARKDOWN.sub(r"\1", code)[:300])


def starts_traceback(text: str) -> bool:
    """Whether a line is the head of a traceback, in any of its shapes."""
    return "Traceback" in text and _START.search(text) is not None


@dataclass(frozen=True, slots=True)
class Row:
    """A meaning: what a file, a function and the quoted source have to look like."""

    phase: ReadPhase
    file: str = ""
    function: str = ""
    code: str = ""


# The first row that fits a frame gives its meaning. File names as the libraries have them.
ROWS: tuple[Row, ...] = (
    # --- optimizer and clipping
    Row("clip", function=r"_?clip_grad|clip_grad_(?:norm|value)_?|_clip_grads_with_norm_"),
    Row("clip", function=r"_?get_total_norm|get_grad_norm|_get_grad_norm|clip_gradients?"),
    Row("clip", file=r"torch/nn/utils/clip_grad\.py"),
    Row("optimizer", file=r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py"),
    Row("optimizer", file=r"bitsandbytes/optim/|apex/optimizers/|deepspeed/ops/\w+/\w*adam"),
    Row(
        "optimizer", file=r"transformers/optimization\.py|galore_torch/|lomo_optim/|torchao/optim/"
    ),
    Row("optimizer", file=r"torch/amp/grad_scaler\.py|torch/cuda/amp/grad_scaler\.py"),
    Row("optimizer", file=r"accelerate/optimizer\.py", function=r"step"),
    Row("optimizer", function=r"_take_model_step|_optimizer_step|optimizer_step|take_model_step"),
    Row("optimizer", file=r"deepspeed/runtime/(?:zero|fp16|bf16_optimizer)", function=r".*step.*"),
    Row("optimizer", file=r"deepspeed/runtime/engine\.py", function=r"step"),
    # --- backward
    Row("backward", file=r"torch/autograd/(?:__init__|graph)\.py", function=r".*backward.*"),
    Row("backward", file=r"torch/autograd/__init__\.py", function=r"grad|_make_grads"),
    Row("backward", file=r"torch/_tensor\.py", function=r"backward"),
    Row("backward", function=r"(?:\w+\.)?_?\w*backward(?:_pass|_step|_impl|_fn|_prologue)?"),
    Row("backward", file=r"torch/distributed/fsdp/", function=r".*(?:backward|post_accumulate).*"),
    Row("backward", file=r"deepspeed/runtime/zero/", function=r"\w*reduce\w*|\w*_ipg_\w*"),
    # --- saving and loading
    Row("save", file=r"torch/serialization\.py", function=r"_?(?:legacy_)?save|__exit__"),
    Row("save", file=r"safetensors/torch\.py", function=r"save\w*|_flatten|_tobytes"),
    Row(
        "save",
        function=r"_?save(?:_\w+)?|dump_checkpoint|_atomic_save|push_to_hub|_zero3_consolidated_16bit_state_dict",
    ),
    Row("save", file=r"transformers/.*callback", function=r"on_save"),
    Row(
        "save",
        file=r"accelerate/(?:accelerator|utils/fsdp_utils)\.py",
        function=r"get_state_dict|save_fsdp_\w+",
    ),
    Row(
        "save",
        function=r"state_dict|_full_(?:pre|post)_state_dict_hook|clone_tensors_for_torch_save"
        r"|get_(?:model|optimizer)?_?state_dict|_get_\w*state_dict|_optim_state_dict\w*"
        r"|full_optim_state_dict|consolidate_state_dict|gather_16bit_weights",
    ),
    Row("load", file=r"torch/serialization\.py", function=r"_?(?:legacy_)?load\w*|persistent_load"),
    Row("load", file=r"torch/_utils\.py", function=r"_rebuild\w*"),
    Row("load", file=r"safetensors/torch\.py", function=r"load\w*"),
    Row("load", file=r"transformers/(?:core_model_loading|quantizers/)"),
    Row(
        "load",
        file=r"transformers/integrations/(?:bitsandbytes|mxfp4|finegrained_fp8|tensor_parallel"
        r"|gguf|ggml|accelerate)",
        function=r"(?!forward).*",
    ),
    Row(
        "load",
        file=r"accelerate/(?:utils/modeling|big_modeling|utils/bnb)\.py",
        function=r"(?!attach).*",
    ),
    Row(
        "load",
        function=r"_?from_pretrained\w*|_load_\w+|load_(?:model|weights|checkpoint|state|state_dict"
        r"|pretrained\w*|adapter|sharded\w*|lora\w*|tokenizer_and_model|quantized\w*|hf_\w+)\w*"
        r"|caching_allocator_warmup|dispatch_model|infer_framework_load_model|merge_and_unload"
        r"|_unload_and_optionally_merge|prepare_model_for_(?:kbit|int8)_training|create_quantized_param"
        r"|resize_token_embeddings|materialize\w*|_materialize\w*",
    ),
    Row("load", file=r"bitsandbytes/nn/modules\.py", function=r"to|cuda|_quantize|cpu|xpu"),
    Row(
        "load",
        file=r"torch/nn/modules/module\.py",
        function=r"(?:Module\.)?(?:to|cuda|half|float|bfloat16|double|_apply|type|to_empty"
        r"|load_state_dict)(?:\.<locals>\.\w+)?|convert|<lambda>|load",
    ),
    Row("load", file=r"transformers/modeling_utils\.py", function=r"to|cuda|half|float"),
    Row("load", function=r"_move_model_to_device|model_to_device|_configure_distributed_model"),
    # --- data
    Row(
        "data",
        file=r"torch/utils/data/|/data/data_collator\.py|datasets/(?:arrow|iterable|formatt)",
    ),
    Row("data", file=r"accelerate/data_loader\.py"),
    Row(
        "data", file=r"accelerate/utils/operations\.py", function=r"send_to_device|_send_to_device"
    ),
    Row(
        "data", function=r"_prepare_inputs?|send_to_device|transfer_batch_to_device|collate(?:_fn)?"
    ),
    Row("data", function=r"batch_to_device|move_data_to_device|pin_memory"),
    # --- generation
    Row("generate", file=r"transformers/generation/"),
    Row("generate", file=r"diffusers/pipelines/", function=r"(?:\w+\.)?__call__"),
    Row(
        "generate",
        file=r"vllm/(?:v1/)?(?:sample|attention/backends|model_executor|spec_decode)|vllm/.*sampler",
    ),
    Row(
        "generate", file=r"vllm/.*(?:model_runner|gpu_worker|worker)\.py", function=r"execute_model"
    ),
    Row("generate", file=r"openai/(?:resources|_base_client)|anthropic/resources"),
    Row(
        "generate",
        function=r"(?:\w+\.)?_?(?:stream_)?generate(?:_(?:text|responses?|tokens?|completions?|answers?"
        r"|samples?|batch|step\w*|single_turn|one_turn|outputs?))?"
        r"|(?:\w+\.)?_?(?:beam_|greedy_|contrastive_)(?:search|sample)|_sample|_prefill"
        r"|_assisted_decoding|chat|stream_chat|sample_tokens",
    ),
    # --- evaluation
    Row(
        "eval",
        function=r"(?:\w+\.)?_?(?:evaluate|evaluation_(?:loop|step)|prediction_(?:step|loop)|predict"
        r"|eval_(?:step|loop|epoch|model|one_epoch|fn)|validat(?:e|ion)(?:_\w+)?|predict_step|run_(?:eval|validation)\w*"
        r"|test_(?:step|epoch|loop|model)|_run_sanity_check|eval|do_eval|evaluate_\w+|\w+_eval(?:uation)?"
        r"|run_evaluation|val_(?:step|epoch|loop)|compute_metrics|preprocess_logits_for_metrics)",
    ),
    Row(
        "eval",
        file=r"transformers/trainer_pt_utils\.py",
        function=r"nested_\w+|add|pad_\w+|torch_pad_\w+",
    ),
    Row("eval", file=r"/(?:lm_eval|lmms_eval)/|loops/evaluation_loop\.py"),
    # --- loss and logits
    Row(
        "loss",
        file=r"transformers/loss/|torch/nn/modules/loss\.py|(?:fused_linear_)?cross_entropy\w*\.py",
    ),
    Row(
        "loss",
        file=r"torch/nn/functional\.py",
        function=r"cross_entropy|nll_loss\w*|\w+_loss|kl_div|log_softmax|binary_cross_entropy\w*",
    ),
    Row("loss", file=r"liger_kernel/.*(?:loss|cross_entropy|dpo|kl|jsd)"),
    Row(
        "loss",
        function=r"(?:\w+\.)?(?!compute_loss$)(?:\w*_)?(?:loss|losses|criterion|cross_entropy|nll|kl|kld"
        r"|logprobs?|logps|kl_div|xent)(?:_\w+)?|(?:\w+\.)?selective_log_softmax|entropy_from_logits"
        r"|_?get_batch_log\w*|chunked_\w*loss\w*|compute_loss|ForCausalLMLoss|\w+Loss(?:\.forward)?",
    ),
    Row(
        "loss",
        file=r"modeling_\w+\.py",
        code=r"\blogits\b.*\.float\(\)|self\.(?:loss_function|lm_head)\(",
    ),
    Row(
        "loss",
        file=r"modeling_\w+\.py",
        code=r"\bloss(?:_fct)?\b *(?:=|\().*(?:loss_fct|criterion)",
    ),
    # --- start-up
    Row(
        "init",
        function=r"(?:init_process_group|_new_process_group_helper|new_group|init_distributed|barrier"
        r"|profile_run|_dummy_run|_dummy_sampler_run|determine_(?:num_)?available_\w+|capture_model"
        r"|initialize_(?:cache|kv_cache\w*|from_config)|_?init_(?:cache\w*|engine|worker\w*|device|model)"
        r"|init_cache_engine|allocate_\w*cache|_allocate_kv_cache\w*|compile_or_warm_up_model|warm_?up\w*"
        r"|from_engine_args|get_peft_model|inject_adapter\w*|_inject_and_replace\w*|add_adapter"
        r"|_sync_module_states|_sync_params_and_buffers|_verify_param_shape_across_processes"
        r"|_init_\w*(?:param|handle|flat|state|group)\w*|__post_init__|__init__|_ddp_init_helper|(?:\w+_)?login(?:_\w+)?"
        r"|update_layer|reset_lora_parameters|initialize|_initialize_\w+|mem_get_info|set_device"
        r"|_lazy_init|setup|create_optimizer\w*|reset_parameters)",
    ),
    Row("init", file=r"torch/nn/init\.py|torch/distributed/fsdp/_(?:init|wrap)_utils"),
    Row(
        "init",
        file=r"torch/distributed/fsdp/(?:fully_shard|_fully_shard)",
        function=r"__init__|fully_shard",
    ),
    # --- forward
    Row("forward", file=r"torch/nn/modules/|transformers/models/|modeling_\w+\.py|peft/tuners/"),
    Row(
        "forward",
        file=r"transformers/integrations/\w*(?:attention|moe)|flash_attn|xformers|accelerate/hooks",
    ),
    Row(
        "forward",
        file=r"bitsandbytes/(?:autograd|nn)|torch/_higher_order_ops|liger_kernel/|triton/ops",
    ),
    Row(
        "forward",
        function=r"(?:[\w.]+[._])?_?forward(?:_\w+)?|_call_impl|_wrapped_call_impl|__call__",
    ),
    Row("forward", file=r"torchinductor_\w+/", code=r"primals_"),
    # --- what the quoted line alone says, for tracebacks that were cut
    Row("clip", code=r"clip_grad"),
    Row("backward", code=r"\.backward\(|tangents_"),
    Row("optimizer", code=r"(?:optim\w*|scaler|opt)\.step\("),
    Row("generate", code=r"\.generate\("),
    Row(
        "load",
        code=r"\.from_pretrained\(|model\w*\.(?:to|cuda|half)\(|torch\.load\(|load_state_dict\(",
    ),
    Row("save", code=r"torch\.save\(|save_pretrained\(|save_model\("),
    Row("init", code=r"init_process_group\(|\.barrier\("),
    Row("eval", code=r"(?:evaluate|validate|trainer\.predict)\("),
    Row("loss", code=r"(?:criterion|loss_fn|loss_fct|cross_entropy)\("),
    Row("forward", code=r"\bself\.model\(|\bmodel\(|\bnet\(|primals_"),
)

_COMPILED = tuple(
    (
        row.phase,
        re.compile(row.file) if row.file else None,
        re.compile(row.function) if row.function else None,
        re.compile(row.code) if row.code else None,
    )
    for row in ROWS
)
# What a forward pass, a loss or a start-up stands in for when it is run inside of it.
_AROUND: dict[str, tuple[ReadPhase, ...]] = {
    "forward": ("backward", "generate", "eval", "load", "init"),
    "loss": ("backward", "generate", "eval", "init"),
    "init": ("load", "forward", "generate", "eval"),
    "load": ("forward",),
    "generate": ("init",),
}
# Whose constructor is around a pass does not tell what the pass is for, and a model's file is no
# pass: around another meaning these phases need a function that says so.
_TELLING: dict[str, re.Pattern[str]] = {
    "init": re.compile(r"(?!(?:\w+\.)?__init__$).*"),
    "forward": re.compile(r"(?:[\w.]+[._])?_?forward(?:_\w+)?|(?:\w+\.)?_(?:wrapped_)?call_impl"),
}
# The last matrix product makes the logits: with the loss the widest tensors of a step.
_LOGITS = re.compile(r"modeling_\w+\.py .*\bself\.(?:lm_head|embed_out|output_projection)\(")
_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/lib/python\d|/Lib/|^<(?!ipython|module|stdin)|torchinductor_"
    r"|/transformers_modules/|unsloth_compiled_cache|\.pyx$|\.pxi$|^/usr/lib/|__torch__"
    r"|\.venv/lib|/conda/envs/[^/]+/lib/"
)
_RECOMPUTING = re.compile(r"torch/utils/checkpoint\.py|deepspeed/.*checkpointing\.py|unsloth_zoo/")


def phase_of(frames: tuple[Frame, ...], context: str = "") -> tuple[ReadPhase, Frame | None]:
    """The phase that the frames tell and the innermost line of the user's own code.

    `context` is text around the failure; it is asked only where the frames tell nothing.
    """
    where = next((f for f in reversed(frames) if not _LIBRARY.search(f.file)), None)
    phase: ReadPhase = "unknown"
    for frame in reversed(frames):
        if phase == "unknown":
            phase = _meaning(frame)
        elif phase == "forward" and _LOGITS.search(f"{frame.file} {frame.code}"):
            phase = "loss"
        else:
            around = _meaning(frame, quoted=False)
            telling = _TELLING.get(around)
            if around in _AROUND.get(phase, ()) and (
                telling is None or telling.fullmatch(frame.function)
            ):
                phase = around
    if phase == "unknown" and context:
        phase = _told_by(context)
    return phase, where


def recomputes(frames: tuple[Frame, ...]) -> bool:
    """Whether a backward pass was running a checkpointed part of the model again."""
    backward = [i for i, frame in enumerate(frames) if _meaning(frame) == "backward"]
    return bool(backward) and any(
        _RECOMPUTING.search(frame.file) for frame in frames[min(backward) :]
    )


def _meaning(frame: Frame, quoted: bool = True) -> ReadPhase:
    """What a frame means; without the rows that only know the quoted line where not `quoted`."""
    for phase, file, function, code in _COMPILED:
        if not quoted and file is None and function is None:
            continue
        if file is not None and not file.search(frame.file):
            continue
        if function is not None and not function.fullmatch(frame.function):
            continue
        if code is not None and (frame.code is None or not code.search(frame.code)):
            continue
        return phase
    return "unknown"


# Words beside a message that has no frames: what was being done, by the program that says so.
_CONTEXT: tuple[tuple[ReadPhase, re.Pattern[str]], ...] = (
    (
        "init",
        re.compile(r"llama_(?:init|kv_cache_init|new_context|load_model|model_load)|load_tensors"),
    ),
    (
        "generate",
        re.compile(r"ggml_backend_cuda_synchronize|llama_decode|graph_compute|slot update"),
    ),
    (
        "init",
        re.compile(
            r"DevicePrimaryCtxRetain|cuCtxCreate|[gG]et_?[mM]em(?:ory)?_?[iI]nfo|mem_get_info|cuInit\b"
            r"|cudaGetDeviceCount|cudaSetDevice|capturing CUDA graph|Capturing CUDA graph"
            r"|memory profiling|KV cache|GPU blocks|\bbarrier\(|init_process_group"
            r"|compile permanent error"
        ),
    ),
    ("backward", re.compile(r"\.backward\(|conv_grad|_grad_(?:input|filter)|gradients/")),
    ("optimizer", re.compile(r"optimizer\.step\(|scaler\.step\(")),
    ("save", re.compile(r"Saving (?:model )?checkpoint|save_pretrained|Saving model|torch\.save")),
    ("eval", re.compile(r"\*\*\*\*\* Running (?:Evaluation|Prediction)|Evaluating:|Validation:")),
    ("load", re.compile(r"Loading (?:checkpoint shards|weights|safetensors)|from_pretrained")),
    ("generate", re.compile(r"\.generate\(")),
)


def _told_by(context: str) -> ReadPhase:
    return next((phase for phase, words in _CONTEXT if words.search(context)), "unknown")
