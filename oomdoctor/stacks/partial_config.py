"""What the files of a training say before it is a rung: a partial configuration, key by key.

The rows of the programs' tables write it (`names/`), `merge` puts that of several files together,
and `conclude` makes the keys of a rung of it. `explain` reads what a log or a file says with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict, TypeVar, cast


class RungKeys(TypedDict, total=False):
    """Keys of `TrainConfig`, as far as they are known.

    `weights_dtype` may be "auto", which the model decides, and `adapter_dtype` may be that of the
    weights (`program.OF_WEIGHTS`).
    """

    method: str
    weights_dtype: str
    autocast_dtype: str
    tf32: bool
    fp8: str
    optimizer: str
    optimizer_rank: int
    optimizer_in_backward: bool
    attention: str
    activation_checkpointing: str
    checkpoint_every: int
    lora_rank: int
    lora_alpha: int
    lora_dropout: float
    lora_targets: str | tuple[str, ...]
    use_dora: bool
    use_rslora: bool
    lora_target_parameters: tuple[str, ...]
    modules_to_save: tuple[str, ...]
    adapter_dtype: str
    frozen_layers: int
    quantization: str
    double_quant: bool
    quant_storage: str
    quantize_experts: bool
    kbit_prepare: str
    loss: str
    objective: str
    reference: str
    completion_length: int
    num_generations: int
    vllm_gpu_memory_utilization: float
    vllm_enable_sleep_mode: bool
    rollout_offload: str
    rl_program: str
    critic: str
    reward_model: str
    routing: str
    vision: str
    images: int
    image_size: int
    audio_seconds: int
    packing: str
    document_length: int
    padding: str
    library: str
    micro_batch_size: int
    sequence_length: int
    effective_batch_size: int
    compile: bool
    offload: str
    sharding: str
    world_size: int
    gpus_per_node: int
    context_parallel_size: int
    fsdp_version: int
    prefetch: str
    reduce_dtype: str
    bucket_elements: int
    sync_each_batch: bool
    allocator: str


class PartialConfig(RungKeys, total=False):
    """Keys of a rung, and what stands for some of them until all files are read.

    Each group says which tables set it and which function of `reading/` reads it.
    """

    # All programs; `draft_of` and `finished` hand them on.
    model: str  # hub id or folder
    revision: str
    # Sizes of a batch: all programs; `conclude._batch`.
    accumulation_steps: int
    batch_of_step: int  # axolotl: rows of a step on each GPU
    batch_of_micro: int  # the file's micro-batch size, where --micro-batch says another
    # Switches of mixed precision: all but torchtune; `dtypes_of`.
    mixed_bfloat16: bool
    mixed_float16: bool
    pure_bf16: bool  # LLaMA-Factory: weights in 16 bits without autocast
    fp8_on: bool  # transformers, accelerate, axolotl, LLaMA-Factory, torchtune; `conclude`
    fp8_backend: str
    # Adapters and quantization: all programs with adapters; `method_of`, `adapter_dtype`.
    use_peft: bool
    bits_4: bool
    bits_8: bool
    stored: bool  # axolotl's gptq, GPTQConfig in scripts: the checkpoint is quantized
    bits_compute: str  # the dtype that bitsandbytes multiplies in
    autocast_adapters: bool  # peft's `autocast_adapter_dtype`
    # Which activations are recomputed: all programs; `conclude._checkpointing`.
    checkpointing: bool
    fsdp_checkpointing: bool  # by FSDP instead of the model
    checkpointing_of_trainer: bool  # LLaMA-Factory has its own switch beside that of transformers
    checkpoint_offload: bool
    checkpoint_part: str  # our own scripts: attention or mlp
    activation_offloading: bool
    # Engines: accelerate, DeepSpeed, FSDP and all programs around them; `conclude._engine`.
    distributed: str  # accelerate and LLaMA-Factory: ddp, fsdp or deepspeed
    nodes: int  # machines
    zero_stage: int
    zero_offload_optimizer: bool
    zero_offload_parameters: bool
    tensor_parallel_size: int  # of transformers' own plan
    ulysses_size: int  # accelerate's sp_size
    in_parts: bool  # by that plan, over all GPUs
    data_parallel_replicas: int  # of accelerate's mesh, beside context_parallel_size
    data_parallel_shards: int
    fsdp: bool
    fsdp_strategy: str  # as `sharding` of a rung
    fsdp_reshard: bool
    fsdp_offload: bool
    bucket_mib: int  # DDP's buckets
    deepspeed_file: str  # a file of DeepSpeed that is named, not read here
    deepspeed_file_of_launcher: str
    # How rows are filled: TRL, axolotl, LLaMA-Factory, torchtune; `_packing`, `_padding`.
    trl_packing: bool
    trl_packing_strategy: str
    trl_packing_of_length: bool
    trl_padding_free: bool
    packing_length: int  # ms-swift alone
    pads_to: int  # tokens of which the length of a row is a multiple
    # Pairs and generations: TRL and axolotl; `_of_objective`.
    beta: float
    prompt_length: int
    use_vllm: bool
    vllm_mode: str
    vllm_share: float
    rollout_moves_states: bool  # ms-swift, verl, OpenRLHF, NeMo-RL: to host memory
    rollout_moves_weights: bool
    critic_on: bool  # verl, OpenRLHF: as said, or as the estimator needs it
    critic_of_estimator: bool
    critic_moves_states: bool
    critic_moves_weights: bool
    critic_name: str  # the models that they begin with
    reward_name: str
    reward_stays: bool
    micro_of_tokens: bool  # verl, OpenRLHF: a micro-batch is as many rows as have these tokens
    tokens_of_micro: int
    prompts_of_step: int  # verl
    batch_of_data: int
    gpus_of_node: int  # verl, OpenRLHF, NeMo-RL
    # LLaMA-Factory alone: `_projected`, `_of_first_version` and `finish._frozen`.
    projected: str  # galore or apollo
    projected_rank: int
    layerwise: bool
    first_version: bool  # a file of its new engine
    method_of_first: str
    freezes: bool
    trainable_layers: int
    # torchtune alone; `_of_tune`.
    tune_fused: bool
    tune_modules: tuple[str, ...]
    tune_mlp: bool
    plugins: list[str]  # axolotl
    # Beside a training: `explain` alone, which reads them in files and logs.
    eval_batch_size: int
    eval_accumulation_steps: int
    workers: int


_T = TypeVar("_T", RungKeys, PartialConfig)


def only(key: str, value: object) -> PartialConfig:
    """One key with its value, where the key is a variable."""
    return cast("PartialConfig", {key: value})


def picked(values: Mapping[str, object], keys: Iterable[str]) -> PartialConfig:
    """The values of these keys that are known, in the order of the keys."""
    chosen = {key: values[key] for key in keys if values.get(key) is not None}
    return cast("PartialConfig", chosen)


def without(values: _T, keys: Iterable[str]) -> _T:
    """The values without these keys."""
    left = frozenset(keys)
    return cast("_T", {key: value for key, value in values.items() if key not in left})
