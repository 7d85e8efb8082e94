"""From what the files say to the keys of a rung: method, precision, engine, batch.

Each rule is one that a program follows when it builds the training from its settings.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys, picked, without
from oomdoctor.stacks.programs.program import OF_WEIGHTS, Program

# Keys of a rung that follow from several settings; the others are as the programs' tables say.
_CONCLUDED = (
    "method", "quantization", "sharding", "offload", "weights_dtype", "autocast_dtype", "fp8",
    "activation_checkpointing", "checkpoint_every", "adapter_dtype", "padding", "document_length",
    "effective_batch_size", "vllm_gpu_memory_utilization", "rl_program", "critic", "reward_model",
)  # fmt: skip
_AS_SAID = tuple(key for key in RungKeys.__annotations__ if key not in _CONCLUDED)
_OF_ADAPTERS = ("use_dora", "use_rslora", "lora_target_parameters", "modules_to_save")
_VLLM_SHARE = 0.3  # TRL's default
_USUAL_BATCH = 16  # where no file says how many rows a step has


def conclude(values: PartialConfig, program: Program, said: Collection[str]) -> RungKeys:
    """The keys of `TrainConfig` behind the values of a main program and its launcher.

    `said` are the keys that the files decide; the others have the programs' defaults.
    """
    given = values.copy()
    if program.prepare is not None:
        program.prepare(given, said)
    rung: RungKeys = picked(given, _AS_SAID)
    if given.get("ulysses_size", 1) > 1:
        rung["context_parallel_size"] = given["ulysses_size"]
    rung |= method_of(given)
    rung |= _engine(given, program)
    rung |= _precision(given, rung, program, said)
    rung |= _checkpointing(given)
    rung |= _packing(given)
    _of_objective(given, rung, said)
    if rung.get("objective") == "grpo" and program.own_step:
        rung["rl_program"] = program.name
    rung |= _padding(given, rung)
    if not str(rung.get("sharding", "")).startswith(("fsdp", "hybrid")):
        rung.pop("fsdp_version", None)
    if given.get("fp8_on"):
        rung["fp8"] = given.get("fp8_backend", "torchao")
    if rung.get("sharding") == "ddp" and "bucket_mib" in given:
        wide = rung.get("weights_dtype") == "float32"
        rung["bucket_elements"] = (given["bucket_mib"] << 20) // (4 if wide else 2)
    if given.get("activation_offloading"):
        if program.offloads_checkpoints and given.get("checkpointing"):
            rung["activation_checkpointing"] = "offload"
        else:
            rung["offload"] = "activations"
    if program.decide is not None:
        rung |= program.decide(given, rung)
    if rung["method"] == "full":
        rung = without(rung, _OF_ADAPTERS)
    rung |= _adapter_dtype(given, rung, program, said)
    return rung | _batch(given, rung, said)


def method_of(given: PartialConfig) -> RungKeys:
    """What is trained, and how the base is quantized."""
    if not given.get("use_peft") and given.get("method") not in ("lora", "qlora"):
        return {"method": "full"}
    if not given.get("bits_4") and not given.get("bits_8"):
        return {"method": "lora"}
    return {"method": "qlora", "quantization": "nf4" if given.get("bits_4") else "int8"}


def _engine(given: PartialConfig, program: Program) -> RungKeys:
    """How the training is spread over GPUs; a stage of ZeRO comes before FSDP."""
    several = given.get("world_size", 1) > 1
    stage = given.get("zero_stage", 0)
    rung: RungKeys = {"sharding": "ddp"} if several else {}
    moved = None
    if given.get("in_parts") or given.get("tensor_parallel_size", 1) > 1:
        rung["sharding"] = "tensor_parallel"
    elif stage and given.get("distributed", "deepspeed") == "deepspeed":
        rung["sharding"] = f"zero{stage}"
        moved = "optimizer" if given.get("zero_offload_optimizer") else None
        moved = "parameters" if given.get("zero_offload_parameters") and stage == 3 else moved
    elif given.get("fsdp") or (program.shards_alone and several):
        rung["sharding"] = fsdp_sharding(given)
        replicas, shards = (
            given.get("data_parallel_replicas", 1),
            given.get("data_parallel_shards", 1),
        )
        if replicas > 1 and shards > 1 and rung["sharding"] == "fsdp":
            rung |= {"sharding": "hybrid", "gpus_per_node": shards}
        moved = "parameters" if given.get("fsdp_offload") else None
    return rung if moved is None else rung | {"offload": moved}


def mesh_of(given: PartialConfig) -> int:
    """The GPUs of accelerate's `ParallelismConfig`; 1 if no file has one."""
    replicas, shards = given.get("data_parallel_replicas", 1), given.get("data_parallel_shards", 1)
    sizes = (
        given.get("context_parallel_size", 1),
        given.get("tensor_parallel_size", 1),
        given.get("ulysses_size", 1),
    )
    return replicas * shards * math.prod(sizes)


def fsdp_sharding(given: PartialConfig) -> str:
    """The `sharding` of a rung, for a training with FSDP."""
    sharding = str(given.get("fsdp_strategy", "fsdp"))
    unsharded = sharding == "fsdp" and given.get("fsdp_reshard") is False
    return "fsdp_grad_op" if unsharded else sharding


def _precision(
    given: PartialConfig, rung: RungKeys, program: Program, said: Collection[str]
) -> RungKeys:
    weights, mixed = dtypes_of(given, rung, program, said)
    if str(rung.get("sharding", "")).startswith("zero") and mixed != "none":
        # DeepSpeed makes the weights 16-bit itself, and keeps fp32 ones in its optimizer.
        return {"weights_dtype": mixed, "autocast_dtype": "none"}
    return {"weights_dtype": weights, "autocast_dtype": mixed}


def dtypes_of(
    given: PartialConfig, rung: RungKeys, program: Program | None, said: Collection[str]
) -> tuple[str, str]:
    """The dtypes of the weights and of autocast, by the rule of a program if it has one."""
    mixed = "bfloat16" if given.get("mixed_bfloat16") else "none"
    mixed = "float16" if given.get("mixed_float16") else mixed
    weights = given.get("weights_dtype", "auto")
    if program is not None and not program.autocasts:
        mixed = "none"
    rule = None if program is None else program.precision
    return (weights, mixed) if rule is None else rule(given, rung, said, weights, mixed)


def _of_objective(given: PartialConfig, rung: RungKeys, said: Collection[str]) -> None:
    """TRL's trainers for pairs and generations: rows have no other packing, pads or loss."""
    if given.get("beta") is not None and "objective" not in rung:
        rung["objective"] = "dpo"
    if rung.get("objective") == "grpo" and (given.get("beta") or 0) > 0:
        rung["reference"] = "kl"
    prompt, completion = given.get("prompt_length"), rung.get("completion_length")
    by_script = "sequence_length" in said  # GRPO's settings have none
    if rung.get("objective") == "grpo" and completion and not by_script:
        # Without a limit, a prompt may be as long as the completions.
        rung["sequence_length"] = (prompt or completion) + completion
    colocated = given.get("use_vllm") and given.get("vllm_mode", "colocate") == "colocate"
    if rung.get("objective") == "grpo" and colocated:
        rung["vllm_gpu_memory_utilization"] = given.get("vllm_share", _VLLM_SHARE)
        if given.get("rollout_moves_states"):
            rung["rollout_offload"] = "all" if given.get("rollout_moves_weights") else "optimizer"
    else:
        rung.pop("vllm_enable_sleep_mode", None)
    if rung.get("objective") == "grpo":
        rung |= _models_beside(given)
    if rung.get("objective", "default") == "default":
        rung.pop("reference", None)
        rung.pop("completion_length", None)
        rung.pop("num_generations", None)


def _models_beside(given: PartialConfig) -> RungKeys:
    """The critic and the reward model of PPO, where they share the GPUs."""
    rung: RungKeys = {}
    if given.get("critic_on", given.get("critic_of_estimator")):
        moved = "host" if given.get("critic_moves_weights") else "weights"
        rung["critic"] = moved if given.get("critic_moves_states") else "card"
    if given.get("reward_stays") and given.get("reward_name"):
        rung["reward_model"] = "card"
    return rung


def _packing(given: PartialConfig) -> RungKeys:
    """How TRL joins documents; rows that are cut at their length have no borders to mind."""
    if given.get("trl_packing") and given.get("trl_packing_strategy") != "wrapped":
        return {"packing": "packed"}
    return {"packing": "padding_free"} if given.get("trl_padding_free") else {}


def _padding(given: PartialConfig, rung: RungKeys) -> RungKeys:
    """Rows that a file pads, where that needs memory: FlashAttention takes the padding out."""
    multiple = given.get("pads_to")
    attention = ATTENTIONS.get(rung.get("attention", "sdpa"))
    if not multiple or "packing" in rung or rung.get("objective") == "grpo":
        return {}
    if attention is None or attention.reads_borders or rung.get("library") == "unsloth":
        return {}
    return {"padding": "max_length" if multiple >= rung.get("sequence_length", 0) else "longest"}


def _checkpointing(given: PartialConfig) -> RungKeys:
    every, part = given.get("checkpoint_every", 1), given.get("checkpoint_part")
    if not part and not (given.get("checkpointing") or given.get("fsdp_checkpointing")):
        return {"activation_checkpointing": "none"}
    if part or given.get("checkpoint_offload"):
        return {"activation_checkpointing": part or "offload"}
    if every > 1:
        return {"activation_checkpointing": "every_n", "checkpoint_every": every}
    return {"activation_checkpointing": "full"}


def _batch(given: PartialConfig, rung: RungKeys, said: Collection[str]) -> RungKeys:
    """The effective batch: what is said, or micro-batch x accumulation x GPUs.

    GPUs that share rows count once.
    """
    world = max(1, rung.get("world_size", 1) // rung.get("context_parallel_size", 1))
    if rung.get("sharding") == "tensor_parallel":
        world = 1
    if "effective_batch_size" in given:
        return {"effective_batch_size": given["effective_batch_size"]}
    if "micro_batch_size" not in rung:
        return {"effective_batch_size": -(-_USUAL_BATCH // world) * world}
    # --micro-batch changes how a batch is split, not its size.
    micro = given.get("batch_of_micro", rung["micro_batch_size"])
    if "batch_of_step" in given and "accumulation_steps" not in said:
        return {"effective_batch_size": max(1, given["batch_of_step"] // micro) * micro * world}
    return {"effective_batch_size": micro * given.get("accumulation_steps", 1) * world}


def _adapter_dtype(
    given: PartialConfig, rung: RungKeys, program: Program, said: Collection[str]
) -> RungKeys:
    """The `adapter_dtype` of a rung with adapters, if the program has not the usual one."""
    if rung["method"] == "full" or rung.get("sharding") in ("zero1", "zero2"):
        return {}
    if "adapter_dtype" in said:
        return {"adapter_dtype": given["adapter_dtype"]}
    if rung.get("library") == "unsloth":
        return {}  # it leaves out TRL's cast
    own = None if program.adapters is None else program.adapters(given, rung)
    if own is not None:
        return {"adapter_dtype": own}
    if given.get("autocast_adapters") is False and rung["method"] != "qlora":
        return {"adapter_dtype": OF_WEIGHTS}  # peft has no such option for quantized weights
    return {}
