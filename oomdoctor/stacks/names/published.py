"""The settings that other programs have, made by scripts/build_stack_names.py.

They tell a setting that a rung cannot express from one that the program does not know.
"""

from __future__ import annotations

from oomdoctor.stacks.names.row import listed

# axolotl 0.19.0
AXOLOTL = listed(
    """
    accelerator_config activation_offloading adam_beta1 adam_beta2 adam_beta3 adam_epsilon
    adam_epsilon2 adapter added_tokens_overrides attn_implementation auto_find_batch_size
    auto_resume_from_checkpoints axolotl_config_path base_model base_model_config batch_flattening
    batch_size bench_dataset bench_split bf16 bfloat16 bnb_config_kwargs center_rewards_coefficient
    chat_template chat_template_jinja chat_template_kwargs chunked_cross_entropy
    chunked_cross_entropy_num_chunks cls_model_config comet_api_key comet_experiment_config
    comet_experiment_key comet_mode comet_online comet_project_name comet_workspace
    context_parallel_size cosine_constant_lr_ratio cosine_min_lr_ratio cpo_alpha
    curriculum_sampling cut_cross_entropy dataloader_drop_last dataloader_num_workers
    dataloader_pin_memory dataloader_prefetch_factor dataset_exact_deduplication
    dataset_keep_in_memory dataset_num_proc dataset_prepared_path dataset_processes
    dataset_shard_idx dataset_shard_num datasets ddp ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_timeout deepcompile deepspeed default_system_message device
    device_map dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of do_bench_eval
    do_causal_lm_eval dp_replicate_size dp_shard_size dpo_beta dpo_generate_during_eval
    dpo_label_smoothing dpo_loss_type dpo_loss_weights dpo_norm_loss dpo_padding_free
    dpo_use_liger_kernel dpo_use_logits_to_keep dpo_use_weighting dynamic_checkpoint eaft_alpha
    eaft_k eager_attention early_stopping_patience ebft embedding_lr embedding_lr_scale
    embeddings_skip_upcast eot_tokens eval_batch_size eval_causal_lm_metrics eval_max_new_tokens
    eval_sample_packing eval_sequence_len eval_steps eval_strategy eval_table_size evals_per_epoch
    evaluation_strategy excess_length_strategy experimental_skip_move_to_device
    experts_implementation fix_untrained_tokens flash_attention flash_attn_cross_entropy
    flash_attn_d512 flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum flex_attention
    flex_attn_compile_kwargs float16 float32 fp16 fp32_norm_classes fp32_norms fp8 fp8_config
    fp8_enable_fsdp_float8_all_gather freeze_mm_modules fsdp fsdp_config
    fsdp_config.activation_checkpointing fsdp_config.auto_wrap_policy
    fsdp_config.cpu_offload_pin_memory fsdp_config.cpu_ram_efficient_loading
    fsdp_config.final_state_dict_type fsdp_config.fsdp_version fsdp_config.min_num_params
    fsdp_config.mixed_precision_policy fsdp_config.offload_params fsdp_config.reshard_after_forward
    fsdp_config.state_dict_type fsdp_config.sync_module_states
    fsdp_config.transformer_layer_cls_to_wrap fsdp_config.use_orig_params
    fsdp_final_state_dict_type fsdp_version fused_attn_kernel gc_collect_steps gc_steps
    gemma4_hybrid_attn_impl generate_samples generation_do_sample generation_max_new_tokens
    generation_prompt_ratio generation_temperature generation_top_k generation_top_p gptq
    gpu_memory_limit gradient_accumulation_steps gradient_checkpointing
    gradient_checkpointing_kwargs gradio_max_new_tokens gradio_server_name gradio_server_port
    gradio_share gradio_temperature gradio_title greater_is_better group_by_length heads_k_stride
    hf_mlflow_log_artifacts hf_use_auth_token hub_model_id hub_revision hub_strategy
    image_resize_algorithm image_size include_tkps include_tokens_per_second
    is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_preprocess
    is_qwen_derived_model jagged_restart_anneal_steps jagged_restart_steps
    jagged_restart_warmup_steps kto_desirable_weight kto_undesirable_weight large_head_attention
    layer_offloading learning_rate liger_cross_entropy liger_fused_linear_cross_entropy
    liger_glu_activation liger_kernel_impl liger_layer_norm liger_rms_norm liger_rms_norm_gated
    liger_rope liger_swiglu liger_use_token_scaling lisa_layers_attribute lisa_n_layers
    lisa_step_interval llama4_linearized_experts load_best_model_at_end load_in_4bit load_in_8bit
    local_rank logging_steps lora_alpha lora_alpha_pattern lora_dropout lora_embedding_kernel
    lora_fan_in_fan_out lora_mlp_kernel lora_model_dir lora_modules_to_save lora_o_kernel
    lora_on_cpu lora_qkv_kernel lora_r lora_rank_pattern lora_target_linear lora_target_modules
    lora_target_parameters loraplus_lr_embedding loraplus_lr_ratio loss_watchdog_patience
    loss_watchdog_threshold low_cpu_mem_usage lr_div_factor lr_groups lr_quadratic_warmup
    lr_scheduler lr_scheduler_kwargs max_grad_norm max_memory max_packed_sequence_len
    max_prompt_len max_steps mean_resizing_embeddings merge_lora merge_method metric_for_best_model
    micro_batch_size min_sample_len mlflow_experiment_name mlflow_run_name mlflow_tracking_uri
    model_quantization_config model_quantization_config_kwargs multipack_real_batches
    neftune_noise_alpha noisy_embedding_alpha num_dataset_shards_to_save num_epochs
    num_generation_samples num_labels optim_args optim_target_modules optimizer orpo_alpha
    otel_metrics_host otel_metrics_port output_dir overrides_of_model_config
    overrides_of_model_kwargs pad_to_multiple_of pad_to_sequence_len peft
    peft_autocast_adapter_dtype peft_ensure_weight_tying peft_init_lora_weights
    peft_layer_replication peft_layers_pattern peft_layers_to_transform
    peft_trainable_token_indices peft_use_dora peft_use_rslora ple_cpu_offload plugins
    pose_max_context_len pose_num_chunks pose_split_on_token_ids precompute_ref_log_probs
    preprocess_iterable pretrain_multipack_attn pretrain_multipack_buffer_size pretraining_dataset
    pretraining_sample_concatenation process_reward_model processor_kwargs processor_type
    profiler_steps profiler_steps_start push_dataset_to_hub qat qgalore_cos_threshold
    qgalore_gamma_proj qgalore_proj_bits qgalore_proj_group_size qgalore_proj_quant
    qgalore_proj_type qgalore_queue_size qgalore_rank qgalore_scale qgalore_update_proj_gap
    qlora_sharded_model_loading quantization quantize_moe_experts ray_num_workers ray_run_name
    reinit_weights relora relora_cpu_offload relora_prune_method relora_prune_ratio
    remove_unused_columns resize_token_embeddings_to_32x resources_per_worker
    resume_from_checkpoint revision_of_model reward_model ring_attn_func rl rl_beta role_boundaries
    rope_scaling rpo_alpha s2_attention sage_attention sample_packing sample_packing_bin_size
    sample_packing_eff_est sample_packing_group_size sample_packing_mp_start_method
    sample_packing_sequentially save_first_step save_only_model save_safetensors save_steps
    save_strategy save_total_limit saves_per_epoch scaling_softmax scaling_softmax_bias
    scaling_softmax_factor sdp_attention sdpa_varlen seed selective_checkpointing sequence_len
    sequence_parallel_degree shrink_embeddings shuffle_before_merging_datasets
    shuffle_merged_datasets simpo_gamma skip_prepare_dataset special_tokens streaming
    streaming_multipack_buffer_size strict tensor_parallel_size test_datasets tf32 tiled_mlp
    tiled_mlp_num_shards tiled_mlp_use_original_mlp tokenizer_config tokenizer_legacy
    tokenizer_save_jinja_files tokenizer_type tokenizer_use_fast tokenizer_use_mistral_common
    tokens torch_compile torch_compile_backend torch_compile_mode torch_compile_options
    torch_empty_cache_steps torchdistx_path total_num_tokens total_supervised_tokens
    trackio_project_name trackio_run_name trackio_space_id train_on_inputs trainer_cls trl
    trust_remote_code type_of_model unfrozen_parameters use_comet use_eaft use_kernels use_mlflow
    use_onebitllms use_otel_metrics use_pose use_ray use_tensorboard use_trackio use_wandb
    val_set_size vllm wandb_entity wandb_log_model wandb_mode wandb_name wandb_project wandb_run_id
    wandb_watch warmup_ratio warmup_steps weight_decay world_size xformers_attention
    """
)

# llama-factory 0.9.5
LLAMA_FACTORY = listed(
    """
    adapter_folder adapter_name_or_path add_special_tokens add_tokens additional_target
    apollo_layerwise apollo_proj apollo_proj_type apollo_rank apollo_scale apollo_scale_front
    apollo_scale_type apollo_target apollo_update_interval asft_alpha audio_sampling_rate
    badam_mask_mode badam_mode badam_start_block badam_switch_interval badam_switch_mode
    badam_update_ratio badam_verbose block_diag_attn buffer_size cache_dir compute_accuracy
    compute_dtype create_new_adapter crop_to_patches cutoff_len data_shared_file_system dataset
    dataset_dir default_system device_map disable_gradient_checkpointing disable_shuffling
    do_sample double_quantization dpo_label_smoothing eaft_alpha early_stopping_steps
    enable_liger_kernel enable_thinking enable_torch_profiler eval_dataset eval_num_beams
    eval_on_each_dataset export_device export_dir export_hub_model_id export_legacy_format
    export_quantization_bit export_quantization_dataset export_quantization_maxlen
    export_quantization_nsamples export_size finetuning_type flash_attn fp8 fp8_backend
    fp8_enable_fsdp_float8_all_gather freeze_extra_modules freeze_language_model
    freeze_multi_modal_projector freeze_trainable_layers freeze_trainable_modules
    freeze_vision_tower galore_layerwise galore_proj_type galore_rank galore_scale galore_target
    galore_update_interval hf_hub_token hyper_parallel_args ignore_pad_token_for_loss
    image_do_pan_and_scan image_max_pixels image_min_pixels include_effective_tokens_per_second
    infer_backend infer_dtype init_special_tokens interleave_probs kt_expert_checkpoint_path
    kt_lora_expert_intermediate_size kt_lora_expert_num kt_use_lora_experts kt_weight_path
    kto_chosen_weight kto_rejected_weight ld_alpha length_penalty lora_alpha lora_dropout lora_rank
    lora_target loraplus_lr_embedding loraplus_lr_ratio low_cpu_mem_usage mask_history master_addr
    master_port max_length max_new_tokens max_samples media_dir mix_strategy mixture_of_depths
    model_max_length model_name_or_path model_revision module_dropout moe_aux_loss_coef
    ms_hub_token neat_packing new_special_tokens_config num_beams offload_folder oft_block_size
    oft_rank oft_target om_hub_token overwrite_cache overwrite_output_dir packing pissa_convert
    pissa_init pissa_iter plot_loss ppo_buffer_size ppo_epochs ppo_score_norm ppo_target
    ppo_whiten_rewards pref_bco_weight pref_beta pref_ftx pref_loss preprocessing_batch_size
    preprocessing_num_workers preserve_thinking print_param_status profile_modules
    profiler_active_steps profiler_output_dir profiler_profile_memory profiler_record_shapes
    profiler_repeat profiler_wait_steps profiler_warmup_steps profiler_with_stack pure_bf16
    quantization_bit quantization_device_map quantization_method quantization_type ray_init_kwargs
    ray_num_workers ref_model ref_model_adapters ref_model_quantization_bit repetition_penalty
    resize_vocab reward_model reward_model_adapters reward_model_quantization_bit reward_model_type
    rope_scaling sglang_config sglang_lora_backend sglang_maxlen sglang_mem_fraction sglang_tp_size
    shift_attn simpo_gamma skip_special_tokens split_special_tokens stage streaming swanlab_api_key
    swanlab_lark_secret swanlab_lark_webhook_url swanlab_logdir swanlab_mode swanlab_project
    swanlab_run_name swanlab_workspace temperature template tokenized_path tool_format top_k top_p
    train_from_scratch train_on_prompt trust_remote_code upcast_layernorm upcast_lmhead_output
    use_adam_mini use_apollo use_asft_loss use_audio_in_video use_badam use_dft_loss use_dora
    use_eaft_loss use_fast_tokenizer use_galore use_hyper_parallel use_kt use_kv_cache
    use_llama_pro use_mca use_muon use_reentrant_gc use_rslora use_swanlab use_unsloth
    use_unsloth_gc use_v1_kernels val_size video_fps video_max_pixels video_maxlen video_min_pixels
    vllm_config vllm_enforce_eager vllm_gpu_util vllm_max_lora_rank vllm_maxlen
    """
)

# torchtune 0.6.1
TORCHTUNE = listed(
    """
    ac_mode ac_option batch_size checkpointer._component_ checkpointer.adapter_checkpoint
    checkpointer.checkpoint_dir checkpointer.checkpoint_files
    checkpointer.checkpoint_files.filename_format checkpointer.checkpoint_files.max_filename
    checkpointer.model_type checkpointer.output_dir checkpointer.recipe_checkpoint clip_grad_norm
    collate_fn compile custom_sharded_layers dataloader.collate_fn dataloader.num_workers
    dataloader.packed dataloader.parallel_method dataloader.pin_memory dataloader.prefetch_factor
    dataloader.shuffle dataset._component_ dataset.add_eos dataset.column dataset.packed
    dataset.source dataset.split dataset.subset dataset.train_on_input datasets device dtype
    enable_activation_checkpointing enable_activation_offloading enable_kv_cache epochs
    forward_batch_size fsdp.cpu_offload fsdp_cpu_offload gamma gradient_accumulation_steps
    kd_loss._component_ kd_ratio kl_coeff lmbda log_every_n_steps log_peak_memory_stats
    loss._component_ loss.beta loss.epsilon loss.label_smoothing loss.value_clip_range
    loss.value_coeff low_cpu_ram lr_scheduler._component_ lr_scheduler.num_warmup_steps
    max_generated_tokens max_steps_per_epoch memory_efficient_fsdp_wrap metric_logger._component_
    metric_logger.log_dir min_response_length model._component_ model.apply_lora_to_mlp
    model.apply_lora_to_output model.decoder_trainable model.encoder_trainable
    model.fusion_trainable model.image_size model.lora_alpha model.lora_attn_modules
    model.lora_dropout model.lora_rank num_steps optimizer._component_ optimizer.fused optimizer.lr
    optimizer.weight_decay optimizer_in_bwd output_dir penalise_no_eos policy_model._component_
    ppo_batch_size ppo_epochs profiler._component_ profiler.active_steps profiler.cpu profiler.cuda
    profiler.enabled profiler.num_cycles profiler.output_dir profiler.profile_memory
    profiler.record_shapes profiler.wait_steps profiler.warmup_steps profiler.with_flops
    profiler.with_stack quantizer._component_ quantizer.groupsize ref_checkpointer._component_
    ref_checkpointer.checkpoint_dir ref_checkpointer.checkpoint_files ref_checkpointer.model_type
    ref_checkpointer.output_dir ref_checkpointer.recipe_checkpoint
    ref_policy_checkpointer._component_ ref_policy_checkpointer.checkpoint_dir
    ref_policy_checkpointer.checkpoint_files ref_policy_checkpointer.model_type
    ref_policy_checkpointer.output_dir resume_from_checkpoint reward_and_value_model._component_
    reward_and_value_model.attn_dropout reward_and_value_model.embed_dim
    reward_and_value_model.intermediate_dim reward_and_value_model.max_seq_len
    reward_and_value_model.norm_eps reward_and_value_model.num_classes
    reward_and_value_model.num_heads reward_and_value_model.num_kv_heads
    reward_and_value_model.num_layers reward_and_value_model.vocab_size
    reward_checkpointer._component_ reward_checkpointer.checkpoint_dir
    reward_checkpointer.checkpoint_files reward_checkpointer.model_type
    reward_checkpointer.output_dir reward_penalty save_adapter_weights_only seed shuffle
    stop_token_ids teacher_checkpointer._component_ teacher_checkpointer.checkpoint_dir
    teacher_checkpointer.checkpoint_files teacher_checkpointer.model_type
    teacher_checkpointer.output_dir teacher_checkpointer.recipe_checkpoint
    teacher_model._component_ temperature tensor_parallel_dim tensor_parallel_plan._component_
    tokenizer._component_ tokenizer.image_size tokenizer.max_seq_len tokenizer.merges_file
    tokenizer.merges_path tokenizer.path tokenizer.vocab_path top_k value_checkpointer._component_
    value_checkpointer.checkpoint_dir value_checkpointer.checkpoint_files
    value_checkpointer.model_type value_checkpointer.output_dir whiten_rewards
    """
)

# The model of each builder below torchtune.models, without lora_ and qlora_, as
# torchtune downloads it for its own configurations, else as the docstring says.
TORCHTUNE_MODELS = {
    "code_llama2.code_llama2_7b": "meta-llama/CodeLlama-7b-hf",
    "gemma.gemma_2b": "google/gemma-2b",
    "gemma.gemma_7b": "google/gemma-7b",
    "gemma2.gemma2_27b": "google/gemma-2-27b",
    "gemma2.gemma2_2b": "google/gemma-2-2b",
    "gemma2.gemma2_9b": "google/gemma-2-9b",
    "llama2.llama2_13b": "meta-llama/Llama-2-13b-hf",
    "llama2.llama2_70b": "meta-llama/Llama-2-70b-hf",
    "llama2.llama2_7b": "meta-llama/Llama-2-7b-hf",
    "llama3.llama3_70b": "meta-llama/Meta-Llama-3-70B-Instruct",
    "llama3.llama3_8b": "meta-llama/Meta-Llama-3-8B",
    "llama3_1.llama3_1_405b": "meta-llama/Meta-Llama-3.1-405B-Instruct",
    "llama3_1.llama3_1_70b": "meta-llama/Meta-Llama-3.1-70B-Instruct",
    "llama3_1.llama3_1_8b": "meta-llama/Meta-Llama-3.1-8B-Instruct",
    "llama3_2.llama3_2_1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3_2.llama3_2_3b": "meta-llama/Llama-3.2-3B-Instruct",
    "llama3_3.llama3_3_70b": "meta-llama/Llama-3.3-70B-Instruct",
    "mistral.mistral_7b": "mistralai/Mistral-7B-v0.1",
    "phi3.phi3_mini": "microsoft/Phi-3-mini-4k-instruct",
    "phi4.phi4_14b": "microsoft/phi-4",
    "qwen2.qwen2_0_5b": "Qwen/Qwen2-0.5B-Instruct",
    "qwen2.qwen2_1_5b": "Qwen/Qwen2-1.5B-Instruct",
    "qwen2.qwen2_7b": "Qwen/Qwen2-7B-Instruct",
    "qwen2_5.qwen2_5_0_5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2_5.qwen2_5_14b_base": "Qwen/Qwen2.5-14B",
    "qwen2_5.qwen2_5_14b_instruct": "Qwen/Qwen2.5-14B-Instruct",
    "qwen2_5.qwen2_5_1_5b_base": "Qwen/Qwen2.5-1.5B",
    "qwen2_5.qwen2_5_1_5b_instruct": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2_5.qwen2_5_32b_base": "Qwen/Qwen2.5-32B",
    "qwen2_5.qwen2_5_32b_instruct": "Qwen/Qwen2.5-32B-Instruct",
    "qwen2_5.qwen2_5_3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2_5.qwen2_5_72b_base": "Qwen/Qwen2.5-72B",
    "qwen2_5.qwen2_5_72b_instruct": "Qwen/Qwen2.5-72B-Instruct",
    "qwen2_5.qwen2_5_7b_base": "Qwen/Qwen2.5-7B",
    "qwen2_5.qwen2_5_7b_instruct": "Qwen/Qwen2.5-7B-Instruct",
}
