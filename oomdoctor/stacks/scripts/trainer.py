"""A rung as a script for transformers' Trainer, and the arguments that TRL's trainers share."""

from __future__ import annotations

from oomdoctor.records.configuration.config import by_ulysses, has_reference_model, is_fsdp, is_zero
from oomdoctor.records.configuration.keys import low_rank
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.stacks.carried_settings import carried
from oomdoctor.stacks.engines import engine_settings, has_mesh, mesh_settings
from oomdoctor.stacks.names.techniques import beta_of, rank_words
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts import model as models
from oomdoctor.stacks.scripts.code import (
    Part,
    call,
    function,
    lines,
    literal,
    literal_lines,
    mapping,
    together,
)
from oomdoctor.stacks.scripts.parts import check_said, script

_ROOM = 88  # columns for the value of an argument


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: the Trainer cannot express the rung (exit 3).
    """
    check_said(rung, "trainer")
    config = rung.config
    parts = [
        arguments_part(rung, "TrainingArguments", training_arguments(rung), "transformers"),
        models.tokenizer(rung),
        models.loading(rung),
        function("collate_for_ulysses" if by_ulysses(config) else "collate"),
        models.adapter(config),
        models.float8(config),
        models.part_checkpointing(config),
        lines("trainer"),
        models.transformer_engine(config),
        lines("train"),
    ]
    return script(rung, "transformers' Trainer", parts, launch(rung))


def arguments_part(rung: StackRung, kind: str, arguments: dict[str, str], library: str) -> Part:
    """`training = KIND(...)`, and what stands before it for the engine of the rung.

    It connects the GPUs and tells from_pretrained how to load for them, so it comes before the
    model.
    """
    body = call(f"training = {kind}", arguments, indent=4)
    mesh = ("accelerate.parallelism_config:ParallelismConfig",) if has_mesh(rung.config) else ()
    if by_ulysses(rung.config):
        mesh = (*mesh, "accelerate.utils:DeepSpeedSequenceParallelConfig")
    made = Part(body, (f"{library}:{kind}", *mesh))
    # accelerate refuses a configuration of DeepSpeed if its own file has settings of it as well
    # (1.15 `DeepSpeedPlugin._deepspeed_config_checks`); those of an export are the same.
    before = lines("without_launcher_settings") if is_zero(rung.config) else Part()
    return together(before, made)


def training_arguments(rung: StackRung, *, trl: bool = False) -> dict[str, str]:
    """Keyword arguments of `TrainingArguments`, or of TRL's configurations, whose defaults
    differ."""
    config = rung.config
    target: FormatName = "trl" if trl else "trainer"
    computes = {config.autocast_dtype} | ({config.weights_dtype} if is_zero(config) else set())
    arguments: dict[str, str] = {
        "output_dir": "args.output",
        "num_train_epochs": "args.epochs",
        "learning_rate": "args.learning_rate",
        "per_device_train_batch_size": "MICRO_BATCH_SIZE",
        "gradient_accumulation_steps": "ACCUMULATION_STEPS",
    }
    if trl:
        arguments |= _of_trl(rung)
    arguments["optim"] = literal(config.optimizer)
    if low_rank(config):
        arguments["optim_args"] = literal(rank_words(config))
        arguments["optim_target_modules"] = '"all-linear"'
    if "bfloat16" in computes or trl:
        arguments["bf16"] = literal("bfloat16" in computes)
    if "float16" in computes:
        arguments["fp16"] = "True"
    if config.tf32 and rung.device != "cpu":  # the Trainer refuses it where there is none
        arguments["tf32"] = "True"
    arguments |= _checkpointing(rung, trl=trl)
    if config.loss == "liger" and not trl:  # SFTTrainer would leave out the loss in chunks
        arguments["use_liger_kernel"] = "True"
    if config.loss == "chunked":  # TRL 2 has only the new name
        two = rung.versions.get("trl") is not None and models.version_of(rung, "trl") >= (2,)
        arguments["loss_type"] = literal("nll" if two else "chunked_nll")
    if config.compile:
        arguments["torch_compile"] = "True"
    arguments |= _offload(rung, target)
    _check_fsdp(rung, target)
    engine = engine_settings(config, dtype_bytes(config.weights_dtype))
    arguments |= {name: literal_lines(value, _ROOM) for name, value in engine.items()}
    if has_mesh(config):
        mesh = {name: literal(size) for name, size in mesh_settings(config).items()}
        if by_ulysses(config):
            handler = {"sp_attn_implementation": literal(config.attention)}
            mesh["sp_handler"] = call("DeepSpeedSequenceParallelConfig", handler, indent=30)
        arguments["parallelism_config"] = call("ParallelismConfig", mesh, indent=30)
    if rung.device == "cpu":
        arguments["use_cpu"] = "True"
    arguments |= {"logging_steps": "10", "save_strategy": '"no"', "report_to": '"none"'}
    for name, value in carried(rung, target).items():
        if not arguments.get(name, "").startswith("args."):
            arguments[name] = literal(value)
    return arguments


def _of_trl(rung: StackRung) -> dict[str, str]:
    """What TRL's arguments have of the lengths, the rows and the objective."""
    config = rung.config
    if config.objective == "grpo":
        return {
            "num_generations": literal(config.num_generations),
            "max_completion_length": "COMPLETION_LENGTH",
            "beta": literal(beta_of(config)),
            **_loads_reference(rung),
        }
    # With `padding_free` alone it cuts nothing, and refuses a length.
    arguments = {"max_length": "None" if config.packing == "padding_free" else "SEQUENCE_LENGTH"}
    if config.packing != "none":
        arguments["packing" if config.packing == "packed" else "padding_free"] = "True"
    if config.padding != "none":  # to the longest row of the batch, without a multiple
        arguments["pad_to_multiple_of"] = "1" if config.padding == "longest" else "SEQUENCE_LENGTH"
    if config.objective == "dpo":
        if config.reference == "precomputed":
            arguments["precompute_ref_log_probs"] = "True"
        arguments |= _loads_reference(rung)
    return arguments


def _loads_reference(rung: StackRung) -> dict[str, str]:
    """How TRL loads a second model, if it loads one.

    With FSDP it would spread one over all GPUs in each process (TRL 1.16 `create_model_from_path`).
    Log-probabilities that are computed before come from a second model with FSDP only.
    """
    config = rung.config
    before = config.objective == "dpo" and config.reference == "precomputed" and is_fsdp(config)
    if config.method != "full" or not (before or has_reference_model(config)):
        return {}
    arguments = models.hub_arguments(rung) | ({"device_map": "None"} if is_fsdp(config) else {})
    return {"model_init_kwargs": mapping(arguments)} if arguments else {}


def _check_fsdp(rung: StackRung, target: str) -> None:
    """What no argument of the Trainer sets for FSDP."""
    config = rung.config
    if not is_fsdp(config):
        return
    if config.reduce_dtype != "default":
        what = f"reduce_dtype = {config.reduce_dtype} with FSDP"
        raise not_in(target, what, "use --to accelerate")
    if config.prefetch == "forward" and config.fsdp_version == 2:
        raise not_in(target, "prefetch = forward with FSDP 2", "use fsdp_version = 1")


def _checkpointing(rung: StackRung, *, trl: bool) -> dict[str, str]:
    name, settings = models.checkpointing_name(rung), models.checkpointing_settings(rung)
    if settings is None:
        return {name: "False"} if trl else {}
    return {name: "True", f"{name}_kwargs": literal(settings)}


def _offload(rung: StackRung, target: str) -> dict[str, str]:
    """Activations in host memory; the engines of several GPUs say the rest themselves."""
    kind = rung.config.offload
    if kind == "activations":
        if target != "trl":
            raise not_in(target, "offload = activations", "use --to trl")
        return {"activation_offloading": "True"}
    if kind == "optimizer" and rung.config.sharding == "none":
        instead = "use optimizer = paged_adamw_8bit, or sharding = zero2 with --to deepspeed"
        raise not_in(target, "offload = optimizer on one GPU", instead)
    return {}


def launch(rung: StackRung) -> str:
    """The line that starts the script."""
    world = rung.config.world_size
    nodes = max(1, world // rung.config.gpus_per_node)
    several = f"--nnodes {nodes} --rdzv-endpoint HOST:29500 " if nodes > 1 else ""
    start = "python" if world == 1 else f"torchrun {several}--nproc-per-node {world // nodes}"
    return f"{start} train.py --data train.jsonl"
