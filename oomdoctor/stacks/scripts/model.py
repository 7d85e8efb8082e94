"""How scripts load a model, add adapters, checkpoint and make an optimizer, as the rung says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oomdoctor.records.configuration.adapters import compute_dtype, lora_settings
from oomdoctor.records.configuration.config import TrainConfig, by_bitsandbytes
from oomdoctor.records.facts.architectures import LAYER_PARTS
from oomdoctor.records.facts.checkpoints import CHECKPOINTS
from oomdoctor.records.facts.optimizers import canonical
from oomdoctor.stacks.names.row import settings_data
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts.code import Part, call, function, lines, literal, together


def version_of(rung: StackRung, library: str) -> tuple[int, ...]:
    """The version of a library in the run; a new one if it is not known."""
    text = rung.versions.get(library) or "99"
    parts = [part for part in text.split("+")[0].split(".")[:2] if part.isdigit()]
    return tuple(map(int, parts)) or (99,)


def loading(rung: StackRung) -> Part:
    """`model = AutoModelForCausalLM.from_pretrained(...)`; for a reward model, with one score."""
    config = rung.config
    rewards = config.objective == "reward"
    kind = "AutoModelForSequenceClassification" if rewards else "AutoModelForCausalLM"
    old = version_of(rung, "transformers") < (4, 56)
    arguments = {
        **hub_arguments(rung),
        "torch_dtype" if old else "dtype": f"torch.{config.weights_dtype}",
        "attn_implementation": literal(config.attention),
    }
    names = ["torch", f"transformers:{kind}"]
    if rewards:
        arguments["num_labels"] = "1"
    if by_bitsandbytes(config):
        arguments["quantization_config"] = quantization(config)
        names.append("transformers:BitsAndBytesConfig")
    row = CHECKPOINTS.get(rung.quant_method or "")
    if row is not None and row.loader is not None and not by_bitsandbytes(config):
        told = row.loader_arguments(stored=config.quantization == "checkpoint")
        if told:
            settings = {name: literal(value) for name, value in told.items()}
            arguments["quantization_config"] = call(row.loader, settings, indent=28)
            names.append(f"transformers:{row.loader}")
    if config.sharding == "tensor_parallel":
        arguments["distributed_config"] = f"DistributedConfig(tp_size={config.world_size})"
        names.append("transformers.distributed:DistributedConfig")
    body = call(f"model = {kind}.from_pretrained", arguments, "args.model", indent=4)
    return Part(f"{body}\nmodel.config.use_cache = False", tuple(names))


def tokenizer(rung: StackRung) -> Part:
    """`tokenizer = AutoTokenizer.from_pretrained(...)`."""
    body = call("tokenizer = AutoTokenizer.from_pretrained", hub_arguments(rung), "args.model")
    return Part(body, ("transformers:AutoTokenizer",))


def hub_arguments(rung: StackRung) -> dict[str, str]:
    """Which revision of the model to load, and whether its own code may run."""
    arguments = {} if rung.revision is None else {"revision": literal(rung.revision)}
    return arguments | ({"trust_remote_code": "True"} if rung.trust_remote_code else {})


def quantization(config: TrainConfig) -> str:
    if config.quantization == "int8":
        return "BitsAndBytesConfig(load_in_8bit=True)"
    settings = {
        "load_in_4bit": "True",
        "bnb_4bit_quant_type": '"nf4"',
        "bnb_4bit_use_double_quant": literal(config.double_quant),
        "bnb_4bit_compute_dtype": f"torch.{compute_dtype(config)}",
    }
    if config.quant_storage != "uint8":
        settings["bnb_4bit_quant_storage"] = f"torch.{config.quant_storage}"
    return call("BitsAndBytesConfig", settings, indent=28)


def kbit_preparation(config: TrainConfig) -> Part:
    """What is cast to 32 bits beside quantized weights."""
    if not by_bitsandbytes(config) or config.kbit_prepare == "none":
        return Part()
    if config.kbit_prepare == "peft":
        line = "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)"
        return Part(line, ("peft:prepare_model_for_kbit_training",))
    return function("cast_norms_to_32_bits", "cast_norms_to_32_bits(model)")


def lora_config(config: TrainConfig) -> Part:
    """The expression of peft's configuration."""
    by_name = config.lora_targets == "attention"
    task = "SEQ_CLS" if config.objective == "reward" else "CAUSAL_LM"
    settings = adapter_settings(config, "use_dora", "use_rslora", task_type=literal(task))
    if by_name:
        settings["target_modules"] = "attention_projections(model)"
    lora = Part(call("LoraConfig", settings, indent=12), ("peft:LoraConfig",))
    return together(function("attention_projections"), lora) if by_name else lora


def adapter_settings(config: TrainConfig, *switches: str, **others: str) -> dict[str, str]:
    """The sizes of adapters and where they go, `switches` if on, and what stands beside that."""
    return {k: literal(v) for k, v in lora_settings(config, *switches).items()} | others


def adapter(config: TrainConfig) -> Part:
    """`model = get_peft_model(...)`, or what is frozen without adapters."""
    if config.method == "full":
        return frozen(config)
    prepared, lora = kbit_preparation(config), lora_config(config)
    line = call("model = get_peft_model", {}, "model", lora.body, indent=4)
    cast = Part() if config.adapter_dtype == "default" else cast_trained(config.adapter_dtype)
    wrapped = Part(line, (*lora.names, "peft:get_peft_model"), lora.functions)
    return together(prepared, wrapped, cast)


def cast_trained(dtype: str, model: str = "model", part: str = "") -> Part:
    """Adapters and what is trained beside them in one type, or a part of it by its name."""
    words = [model, f"torch.{dtype}", *([literal(part)] if part else [])]
    return function("cast_trained", f"cast_trained({', '.join(words)})")


def liger(config: TrainConfig) -> Part:
    """Liger's kernels, with the loss in chunks, in the model itself."""
    name = "_apply_liger_kernel_to_instance"
    part = Part(f"{name}(model=model)", (f"liger_kernel.transformers:{name}",))
    return part if config.loss == "liger" else Part()


def float8(config: TrainConfig) -> Part:
    """Linear layers that multiply in float8, as accelerate's recipe for torchao does it."""
    if config.fp8 != "torchao":
        return Part()
    settings = {"pad_inner_dim": "True", "enable_fsdp_float8_all_gather": "False"}
    recipe = call("Float8LinearConfig", settings, indent=15)
    body = call("convert_model_to_fp8_ao", {"config": recipe}, "model", indent=4)
    names = ("accelerate.utils.ao:convert_model_to_fp8_ao", "torchao.float8:Float8LinearConfig")
    return Part(body, names)


def transformer_engine(config: TrainConfig) -> Part:
    """The layers of Transformer Engine and its autocast, once the Trainer has an Accelerator."""
    return lines("transformer_engine") if config.fp8 == "transformer_engine" else Part()


def frozen(config: TrainConfig) -> Part:
    """The layers that full fine-tuning leaves as they are."""
    count = config.frozen_layers
    return function("freeze", f"freeze(model, layers={count})") if count else Part()


def part_checkpointing(config: TrainConfig) -> Part:
    """Checkpointing of one part of each layer, for which transformers has no setting."""
    kind = config.activation_checkpointing
    if kind not in LAYER_PARTS:
        return Part()
    line = f"checkpoint_{kind}(model)"
    return function("checkpoint_part", line, part=kind, pattern=LAYER_PARTS[kind])


def checkpointing_settings(rung: StackRung) -> dict[str, object] | None:
    """What transformers' checkpointing takes; None if the rung has none of its kinds."""
    config = rung.config
    kind = config.activation_checkpointing
    if kind in ("none", "attention", "mlp"):
        return None
    settings: dict[str, object] = {"use_reentrant": False}
    settings |= {"every_n_layers": config.checkpoint_every} if kind == "every_n" else {}
    settings |= {"offload": True} if kind == "offload" else {}
    if len(settings) > 1 and not _renames_checkpointing(rung):
        raise not_in(
            f"transformers {rung.versions.get('transformers')}",
            f"activation_checkpointing = {literal(kind)}",
            "use transformers 5.23 or later, or activation_checkpointing = full",
        )
    return settings


def checkpointing_name(rung: StackRung) -> str:
    """What the rung's transformers calls it."""
    new = _renames_checkpointing(rung)
    return "activation_checkpointing" if new else "gradient_checkpointing"


def _renames_checkpointing(rung: StackRung) -> bool:
    return version_of(rung, "transformers") >= (5, 23)


@dataclass(frozen=True, slots=True)
class Built:
    """How an optimizer is built: its class, as it is imported, and its keyword arguments.

    `eight_bit`: bitsandbytes would keep 8-bit states for embeddings, too.
    """

    source: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    eight_bit: bool = False

    @property
    def called(self) -> str:
        """What the script calls, such as `torch.optim.AdamW`."""
        library, kind = self.source.split(":")
        return kind if library == "transformers" else f"{library}.optim.{kind}"

    @property
    def imported(self) -> str:
        """What the script imports for it."""
        library = self.source.split(":")[0]
        return self.source if library == "transformers" else library


BUILT = {name: Built(**row) for name, row in settings_data()["built"].items()}


def optimizer(rung: StackRung) -> Part:
    """`optimizer = ...` in a plain loop.

    Raises:
        OomDoctorError: a plain loop cannot build it (exit 3).
    """
    name = canonical(rung.config.optimizer)
    built = BUILT.get(name)
    if built is None:
        raise not_in("pytorch", f"the optimizer {name}", "use --to trainer, which makes it by name")
    settings = {"lr": "args.learning_rate", **{k: literal(v) for k, v in built.arguments.items()}}
    body = call(f"optimizer = {built.called}", settings, "parameter_groups(model)", indent=4)
    kept = function("keep_embeddings_in_32_bits", "keep_embeddings_in_32_bits(model)")
    made = (Part(body, (built.imported,)), function("parameter_groups"))
    return together(*made, kept) if built.eight_bit else together(*made)
