"""A rung as a script for Unsloth, which loads and patches the model itself.

Unsloth needs a GPU even to be imported; the emulated one is enough.
"""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.rung.faults import UNSLOTH_CHECKPOINTING, UNSLOTH_CHOICES
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts import data, parts
from oomdoctor.stacks.scripts.code import call, literal
from oomdoctor.stacks.scripts.said import check_said
from oomdoctor.stacks.scripts.training_arguments import training_arguments


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: Unsloth cannot express the rung (exit 3).
    """
    _check(rung)
    names = [
        *parts.ARGUMENT_IMPORTS,
        *data.TEXT.names,
        *("torch", "datasets:Dataset", "trl:SFTConfig", "trl:SFTTrainer"),
    ]
    trainer = {
        "model": "model",
        "args": "training",
        "train_dataset": 'Dataset.from_dict({"input_ids": packed_rows(args.data, tokenizer)})',
        "processing_class": "tokenizer",
    }
    # Unsloth checkpoints by its own switch.
    settings = {
        name: value
        for name, value in training_arguments(rung, trl=True).items()
        if "checkpointing" not in name
    }
    # Its SFTTrainer would make one row of a batch, which its rungs do not.
    settings["padding_free"] = "False"
    text = parts.script(
        rung,
        "Unsloth",
        names,
        [
            parts.arguments(rung),
            *data.TEXT.functions,
            parts.main(
                [
                    "args = parse_arguments()",
                    _loading(rung),
                    _adapter(rung.config),
                    call("training = SFTConfig", settings, indent=4),
                    call("trainer = SFTTrainer", trainer, indent=4),
                    "trainer.train()",
                    "model.save_pretrained(args.output)",
                    "tokenizer.save_pretrained(args.output)",
                ]
            ),
        ],
        "python train.py --data train.jsonl",
    )
    # It patches the other libraries, so it has to be imported before them.
    first = "import argparse\n"
    return text.replace(
        first, f"from unsloth import FastLanguageModel  # isort: skip\n\n{first}", 1
    )


def _check(rung: StackRung) -> None:
    check_said(rung, "unsloth")
    config = rung.config
    if config.activation_checkpointing not in UNSLOTH_CHECKPOINTING:
        kind = config.activation_checkpointing
        raise not_in("unsloth", f"activation_checkpointing = {kind}", "use full or offload")
    if config.lora_targets == "attention":
        raise not_in("unsloth", "lora_targets = attention", "name the modules")
    for key, choices in UNSLOTH_CHOICES:
        value = getattr(config, key)
        if value not in choices:
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
    if rung.revision is not None:
        settings["revision"] = literal(rung.revision)
    if rung.trust_remote_code:
        settings["trust_remote_code"] = "True"
    return call("model, tokenizer = FastLanguageModel.from_pretrained", settings, indent=4)


def _adapter(config: TrainConfig) -> str:
    if config.method == "full":
        return ""
    settings = {
        "r": literal(config.lora_rank),
        "lora_alpha": literal(config.lora_alpha),
        "lora_dropout": literal(config.lora_dropout),
        "target_modules": literal(config.lora_targets),
        "use_gradient_checkpointing": literal(
            UNSLOTH_CHECKPOINTING[config.activation_checkpointing]
        ),
    }
    if config.use_rslora:
        settings["use_rslora"] = "True"
    if config.modules_to_save:
        settings["modules_to_save"] = literal(config.modules_to_save)
    return call("model = FastLanguageModel.get_peft_model", settings, "model", indent=4)
