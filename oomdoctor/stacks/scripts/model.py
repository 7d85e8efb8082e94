"""How scripts load a model, add adapters and turn on checkpointing, as the rung says.

Each function returns source for the body of a function, and the names that it imports.
"""

from __future__ import annotations

from typing import NamedTuple

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.facts.architectures import LAYER_PARTS
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts.code import call, literal


class Part(NamedTuple):
    """Lines of a function, the names they import, and functions that they call."""

    body: str = ""
    names: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


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
    if config.quantization != "none":
        arguments["quantization_config"] = quantization(config)
        names.append("transformers:BitsAndBytesConfig")
    body = call(f"model = {kind}.from_pretrained", arguments, "args.model", indent=4)
    return Part(f"{body}\nmodel.config.use_cache = False", tuple(names))


def tokenizer(rung: StackRung) -> Part:
    """`tokenizer = AutoTokenizer.from_pretrained(...)`."""
    body = call("tokenizer = AutoTokenizer.from_pretrained", hub_arguments(rung), "args.model")
    return Part(body, ("transformers:AutoTokenizer",))


def hub_arguments(rung: StackRung) -> dict[str, str]:
    """Which revision of the model to load, and whether its own code may run."""
    found = {} if rung.revision is None else {"revision": literal(rung.revision)}
    return found | ({"trust_remote_code": "True"} if rung.trust_remote_code else {})


def quantization(config: TrainConfig) -> str:
    if config.quantization == "int8":
        return "BitsAndBytesConfig(load_in_8bit=True)"
    computes = config.weights_dtype if config.autocast_dtype == "none" else config.autocast_dtype
    settings = {
        "load_in_4bit": "True",
        "bnb_4bit_quant_type": '"nf4"',
        "bnb_4bit_use_double_quant": literal(config.double_quant),
        "bnb_4bit_compute_dtype": f"torch.{computes}",
    }
    if config.quant_storage != "uint8":
        settings["bnb_4bit_quant_storage"] = f"torch.{config.quant_storage}"
    return call("BitsAndBytesConfig", settings, indent=28)


def kbit_preparation(config: TrainConfig) -> Part:
    """What is cast to 32 bits beside quantized weights."""
    if config.quantization == "none" or config.kbit_prepare == "none":
        return Part()
    if config.kbit_prepare == "peft":
        line = "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)"
        return Part(line, ("peft:prepare_model_for_kbit_training",))
    return Part("cast_norms_to_32_bits(model)", ("torch",), (_NORMS,))


_NORMS = '''
def cast_norms_to_32_bits(model: torch.nn.Module) -> None:
    """16 bits are too coarse for norms beside quantized weights."""
    for name, module in model.named_modules():
        if "norm" in name.rsplit(".", 1)[-1].lower():
            module.to(torch.float32)
'''


def lora_config(config: TrainConfig) -> Part:
    """The expression of peft's configuration."""
    functions: tuple[str, ...] = ()
    targets = literal(config.lora_targets)
    if config.lora_targets == "attention":
        targets, functions = "attention_projections(model)", (_PROJECTIONS,)
    settings = {
        "r": literal(config.lora_rank),
        "lora_alpha": literal(config.lora_alpha),
        "lora_dropout": literal(config.lora_dropout),
        "target_modules": targets,
        "task_type": literal("SEQ_CLS" if config.objective == "reward" else "CAUSAL_LM"),
    }
    settings |= {key: "True" for key in ("use_dora", "use_rslora") if getattr(config, key)}
    if config.modules_to_save:
        settings["modules_to_save"] = literal(config.modules_to_save)
    return Part(call("LoraConfig", settings, indent=12), ("peft:LoraConfig",), functions)


def adapter(config: TrainConfig) -> Part:
    """`model = get_peft_model(...)`, or what is frozen without adapters."""
    if config.method == "full":
        return frozen(config)
    prepared, lora = kbit_preparation(config), lora_config(config)
    line = call("model = get_peft_model", {}, "model", lora.body, indent=4)
    cast = Part() if config.adapter_dtype == "default" else cast_trained(config.adapter_dtype)
    body = "\n".join(filter(None, (prepared.body, line, cast.body)))
    names = (*prepared.names, *lora.names, *cast.names, "peft:get_peft_model")
    return Part(body, names, (*prepared.functions, *lora.functions, *cast.functions))


def cast_trained(dtype: str, model: str = "model", part: str = "") -> Part:
    """Adapters and what is trained beside them in one type, or a part of it by its name."""
    words = [model, f"torch.{dtype}", *([literal(part)] if part else [])]
    return Part(f"cast_trained({', '.join(words)})", ("torch",), (_CAST,))


_CAST = '''
def cast_trained(model: torch.nn.Module, dtype: torch.dtype, part: str = "") -> None:
    """Keep what is trained in one type, except for the lengths that DoRA learns."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and part in name and "lora_magnitude_vector" not in name:
            parameter.data = parameter.data.to(dtype)
'''


def liger(config: TrainConfig) -> Part:
    """Liger's kernels, with the loss in chunks, in the model itself."""
    if config.loss != "liger":
        return Part()
    return Part(
        "_apply_liger_kernel_to_instance(model=model)",
        ("liger_kernel.transformers:_apply_liger_kernel_to_instance",),
    )


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
    if config.fp8 != "transformer_engine":
        return Part()
    names = ("convert_model", "apply_fp8_autowrap", "TERecipeKwargs")
    return Part(
        """\
# As accelerate does it for mixed_precision="fp8". It needs the Accelerator of the trainer.
with torch.no_grad():
    convert_model(trainer.model)
apply_fp8_autowrap(trainer.model, TERecipeKwargs())""",
        ("torch", *(f"accelerate.utils:{name}" for name in names)),
    )


def frozen(config: TrainConfig) -> Part:
    """The layers that full fine-tuning leaves as they are."""
    count = config.frozen_layers
    if not count:
        return Part()
    function = """
def freeze(model: torch.nn.Module, layers: int) -> None:
    \"\"\"Train neither the embeddings nor the first layers.\"\"\"
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.requires_grad_(False)
    for name, parameter in model.named_parameters():
        number = re.search(r"\\.(\\d+)\\.", name)
        if number and int(number[1]) < layers:
            parameter.requires_grad_(False)
"""
    return Part(f"freeze(model, layers={count})", ("re", "torch"), (function,))


_PROJECTIONS = '''
def attention_projections(model: torch.nn.Module) -> list[str]:
    """The names of the linear layers inside attention modules."""
    found = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if "att" in name.lower() and type(module).__name__.startswith(("Linear", "Conv1D"))
    }
    return sorted(found)
'''


def part_checkpointing(config: TrainConfig) -> Part:
    """Checkpointing of one part of each layer, for which transformers has no setting."""
    kind = config.activation_checkpointing
    if kind not in ("attention", "mlp"):
        return Part()
    function = f'''
def checkpoint_{kind}(model: torch.nn.Module) -> None:
    """Keep only the inputs of each {kind} module, and recompute the rest in the backward pass."""
    named = r"{LAYER_PARTS[kind]}"
    for name, module in model.named_modules():
        layer, _, own_name = name.rpartition(".")
        if not re.search(r"\\.\\d+$", layer) or not re.search(named, own_name, re.IGNORECASE):
            continue
        if any(weight.dim() > 1 for weight in module.parameters()):
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
'''
    names = ("functools", "re", "torch", "torch.utils.checkpoint:checkpoint")
    return Part(f"checkpoint_{kind}(model)", names, (function,))


def checkpointing_settings(rung: StackRung) -> dict[str, object] | None:
    """What transformers' checkpointing takes; None if the rung has none of its kinds."""
    config = rung.config
    kind = config.activation_checkpointing
    if kind in ("none", "attention", "mlp"):
        return None
    settings: dict[str, object] = {"use_reentrant": False}
    if kind == "every_n":
        settings["every_n_layers"] = config.checkpoint_every
    if kind == "offload":
        settings["offload"] = True
    if len(settings) > 1 and not renamed_checkpointing(rung):
        raise not_in(
            f"transformers {rung.versions.get('transformers')}",
            f"activation_checkpointing = {literal(kind)}",
            "use transformers 5.23 or later, or activation_checkpointing = full",
        )
    return settings


def renamed_checkpointing(rung: StackRung) -> bool:
    """Whether transformers calls it activation checkpointing, no longer gradient checkpointing."""
    return version_of(rung, "transformers") >= (5, 23)
