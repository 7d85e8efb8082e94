"""A rung as a script for Unsloth, which loads and patches the model itself.

Unsloth needs a GPU even to be imported; the emulated one is enough.
"""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import UNSLOTH_CHECKPOINTING, UNSLOTH_CHOICES
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts.code import Part, call, literal
from oomdoctor.stacks.scripts.data import TEXT
from oomdoctor.stacks.scripts.model import adapter_settings, hub_arguments
from oomdoctor.stacks.scripts.parts import SAVE, check_said, script
from oomdoctor.stacks.scripts.trainer import launch, training_arguments


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: Unsloth cannot express the rung (exit 3).
    """
    _check(rung)
    trainer = {
        "model": "model",
        "args": "training",
        "train_dataset": TEXT.dataset,
        "processing_class": "tokenizer",
    }
    # Unsloth checkpoints by its own switch.
    arguments = training_arguments(rung, trl=True).items()
    settings = {name: value for name, value in arguments if "checkpointing" not in name}
    # Its SFTTrainer would make one row of a batch, which its rungs do not.
    settings["padding_free"] = "False"
    names = ("torch", "datasets:Dataset", "trl:SFTConfig", "trl:SFTTrainer")
    parts = [
        Part(_loading(rung), names),
        Part(_adapter(rung.config)),
        Part(call("training = SFTConfig", settings, indent=4)),
        Part(call("trainer = SFTTrainer", trainer, indent=4)),
        Part("trainer.train()\n" + SAVE),
    ]
    text = script(rung, "Unsloth", parts, launch(rung))
    # It patches the other libraries, so it has to be imported before them.
    first, own = "import argparse\n", "from unsloth import FastLanguageModel  # isort: skip"
    return text.replace(first, f"{own}\n\n{first}", 1)


def _check(rung: StackRung) -> None:
    check_said(rung, "unsloth")
    config = rung.config
    kind = config.activation_checkpointing
    if kind not in UNSLOTH_CHECKPOINTING:
        raise not_in("unsloth", f"activation_checkpointing = {kind}", "use full or offload")
    if config.lora_targets == "attention":
        raise not_in("unsloth", "lora_targets = attention", "name the modules")
    for key, choices in UNSLOTH_CHOICES.items():
        if (value := getattr(config, key)) not in choices:
            raise not_in("unsloth", f"{key} = {value}", "use --to trl")


def _loading(rung: StackRung) -> str:
    config = rung.config
    checkpointing = literal(UNSLOTH_CHECKPOINTING[config.activation_checkpointing])
    settings = {
        "model_name": "args.model",
        "max_seq_length": "SEQUENCE_LENGTH",
        "dtype": f"torch.{config.weights_dtype}",
        "load_in_4bit": literal(config.quantization == "nf4"),
    }
    if config.quantization == "int8":
        settings["load_in_8bit"] = "True"
    if config.method == "full":
        settings["full_finetuning"] = "True"
        settings["use_gradient_checkpointing"] = checkpointing
    settings |= hub_arguments(rung)
    return call("model, tokenizer = FastLanguageModel.from_pretrained", settings, indent=4)


def _adapter(config: TrainConfig) -> str:
    if config.method == "full":
        return ""
    checkpointing = literal(UNSLOTH_CHECKPOINTING[config.activation_checkpointing])
    settings = adapter_settings(config, "use_rslora", use_gradient_checkpointing=checkpointing)
    return call("model = FastLanguageModel.get_peft_model", settings, "model", indent=4)
