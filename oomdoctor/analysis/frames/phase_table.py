"""Which phase a frame belongs to: one table of files, functions and quoted lines.

The names are those of torch, transformers, TRL, PEFT, accelerate, DeepSpeed, Lightning,
bitsandbytes and vLLM. `own_names` has the names of functions in people's own scripts.
"""

from __future__ import annotations

from oomdoctor.analysis.frames import own_names
from oomdoctor.analysis.frames.files_and_data import FILES_AND_DATA, Row

# Files whose `__call__` is no forward pass: programs, servers, operators, processors of data.
_CALLED = (
    r"^(?!.*(?:/click/|/typer/|/fire/|starlette|fastapi|uvicorn|gradio|celery|tornado|flask|werkzeug"
    r"|concurrent|multi_tensor_apply|torch/_ops\.py|torch/utils/|torch/_library|torch/optim/|/ray/"
    r"|tokenization|processing_|feature_extraction)).*"
)

# The first row that matches a frame gives its phase.
ROWS: tuple[Row, ...] = (
    # --- optimizer and clipping
    Row("clip", function=r"_?clip_grad|clip_grad_(?:norm|value)_?|_clip_grads_with_norm_"),
    Row(
        "clip", function=r"_?get_total_norm|_?get_grad_norm|clip_gradients?|unscale_and_clip_grads"
    ),
    Row("clip", function=r"clip_grads?(?:_\w+)?|clip_by_global_norm"),
    Row("clip", file=r"torch/nn/utils/clip_grad\.py"),
    Row(
        "load",
        file=r"torch/optim/optimizer\.py",
        function=r"_?load_state_dict|_cast|_process_value\w*|__setstate__",
    ),
    Row("save", file=r"torch/optim/optimizer\.py", function=r"state_dict|pack(?:ed)?_\w+"),
    Row("optimizer", file=r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py"),
    Row("optimizer", file=r"bitsandbytes/optim/|apex/(?:contrib/)?optimizers/"),
    Row("optimizer", file=r"deepspeed/ops/\w+/\w*(?:adam|lion|lamb|adagrad)"),
    Row("optimizer", file=r"bitsandbytes/", function=r"_?optimizer_update_\w+|get_paged"),
    Row(
        "optimizer", file=r"transformers/optimization\.py|galore_torch/|lomo_optim/|torchao/optim/"
    ),
    Row("optimizer", file=r"apex/amp/_process_optimizer\.py"),
    Row(
        "optimizer",
        file=r"(?i)(?:optim|adam|adan|lion|muon|shampoo|sophia|soap|lamb|lars|adafactor|galore|prodigy"
        r"|apollo|schedule_?free|came)[^/]*(?:/[^/]+)?\.py",
        function=r"(?:\w+\.)?_?(?:step|init_state|_?init_states?|update_step|single_step|step_\w+)",
    ),
    Row("optimizer", file=r"torch/amp/grad_scaler\.py|torch/cuda/amp/grad_scaler\.py"),
    Row("optimizer", file=r"accelerate/optimizer\.py", function=r"step"),
    Row("optimizer", function=r"_take_model_step|_optimizer_step|optimizer_step|take_model_step"),
    Row(
        "optimizer",
        file=r"deepspeed/runtime/(?:zero|fp16|bf16_optimizer)",
        function=r"_?(?:(?:optimizer|pre|post)_)?step(?:_\w+)?",
    ),
    Row("optimizer", file=r"deepspeed/runtime/engine\.py", function=r"step"),
    # --- backward
    Row("backward", file=r"torch/autograd/(?:__init__|graph)\.py", function=r".*backward.*"),
    Row("backward", file=r"torch/autograd/__init__\.py", function=r"grad|_make_grads"),
    Row("backward", file=r"torch/_tensor\.py", function=r"backward"),
    Row("backward", function=r"(?:\w+\.)?_?\w*backward(?:_pass|_step|_impl|_fn|_prologue)?"),
    Row("backward", file=r"torch/distributed/fsdp/", function=r".*(?:backward|post_accumulate).*"),
    Row(
        "backward", file=r"deepspeed/runtime/zero/", function=r"(?!create_)\w*reduce\w*|\w*_ipg_\w*"
    ),
    *FILES_AND_DATA,
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
    Row(
        "generate",
        file=r"sglang/srt/",
        function=r"forward_batch\w*|run_batch|forward_(?:extend|decode|raw|idle)|event_loop\w*",
    ),
    Row("generate", file=r"openai/(?:resources|_base_client)|anthropic/resources"),
    Row(
        "generate",
        function=r"(?:\w+\.)?_?(?:stream_)?generate(?:_(?:text|responses?|tokens?|completions?|answers?"
        r"|samples?|batch|step\w*|single_turn|one_turn|outputs?))?"
        r"|(?:\w+\.)?_?(?:beam_|greedy_|contrastive_)(?:search|sample)|_sample|_prefill"
        r"|_assisted_decoding|chat|stream_chat|sample_tokens",
    ),
    Row("generate", file=own_names.NOT_GENERATING, function=own_names.GENERATION),
    Row(
        "generate",
        file=own_names.NOT_GENERATING,
        function=own_names.WEAK_GENERATION,
        weak=True,
    ),
    # --- evaluation
    Row(
        "eval",
        function=r"(?:\w+\.)?_?(?:evaluation_(?:step|loop)|prediction_(?:step|loop)|predict|predict_step"
        r"|_run_sanity_check|compute_metrics|preprocess_logits_for_metrics)",
    ),
    Row("eval", file=own_names.OTHER_USE, function=own_names.EVALUATION),
    Row(
        "eval",
        file=r"transformers/trainer_pt_utils\.py",
        function=r"nested_\w+|add|pad_\w+|torch_pad_\w+",
    ),
    Row("eval", file=r"/(?:lm_eval|lmms_eval)/|loops/evaluation_loop\.py"),
    # --- loss and logits
    Row("loss", file=own_names.LOSS_FILE, function=r"forward|__call__|loss\w*"),
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
    Row(
        "loss",
        function="training_step",
        code=r"\bloss\b *(?:=|/=) *loss\b|\bloss\.mean\(|(?:criterion|loss_\w+|cross_entropy)\(",
    ),
    # --- startup
    Row("init", file=r"pandas/(?:core|io|_libs)/|^index\.pyx$"),
    Row("init", function=r"create_reference_model"),
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
        r"|_lazy_init|setup|setup_model\w*|create_optimizer\w*|reset_parameters|_?capture_\w+"
        r"|initialize_optimizer_states|alloc_memory_pool|init_(?:memory_pool|cuda_graphs|\w+_backend)"
        r"|prepare_model|_prepare_(?:one|model|deepspeed|fsdp\w*))",
    ),
    Row("init", file=r"torch/nn/init\.py|torch/distributed/fsdp/_(?:init|wrap)_utils"),
    Row(
        "init",
        file=r"torch/distributed/fsdp/(?:fully_shard|_fully_shard)",
        function=r"__init__|fully_shard",
    ),
    # --- forward
    Row("forward", file=r"torch/nn/modules/|transformers/models/|modeling_\w+\.py"),
    Row("forward", file=r"peft/tuners/", function=r"(?!(?:un)?merge$|get_delta_weight$|_unload).*"),
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
        function=r"(?:[\w.]+[._])?_?forward(?:_\w+)?|_call_impl|_wrapped_call_impl",
    ),
    Row("forward", file=_CALLED, function=r"__call__"),
    Row("forward", file=r"torchinductor_\w+/", code=r"primals_"),
    # --- the quoted line alone, for truncated tracebacks
    Row("save", code=r"deepcopy\(.*state_dict"),
    Row("init", code=r"\bdeepcopy\("),
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
    Row("eval", code=r"\b(?:evaluate|validate|trainer\.predict)\("),
    Row("loss", code=r"(?:criterion|loss_fn|loss_fct|cross_entropy)\("),
    Row("loss", code=r"\b(?:shift_)?logits\b.*\.(?:float|contiguous|(?:log_)?softmax)\("),
    Row(
        "data",
        code=r"\b(?:batch|inputs?|images?|labels?|targets?|input_ids|pixel_values|features)"
        r"(?:\[[^]]+\]|\.\w+)?\.(?:to|cuda)\(|\b(?:tokenizer|processor)\(.*\)\.to\(",
    ),
    Row("forward", code=r"\bself\.model\(|\bmodel\(|\bnet\(|primals_"),
    Row("forward", function=r"_?training_step"),
)
