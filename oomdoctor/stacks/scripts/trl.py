"""A rung as a script for TRL: SFTTrainer, or the trainer of the rung's objective."""

from __future__ import annotations

from oomdoctor.records.configuration.adapters import kept_dtype, saved_dtype
from oomdoctor.records.configuration.config import TrainConfig, by_bitsandbytes
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.scripts import model as models
from oomdoctor.stacks.scripts.code import Part, call, function, lines
from oomdoctor.stacks.scripts.data import data_of
from oomdoctor.stacks.scripts.parts import check_said, script
from oomdoctor.stacks.scripts.trainer import arguments_part, launch, training_arguments

_WHY_CAST = "# TRL casts what is trained of a quantized model to bfloat16. This script does not."


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: TRL cannot express the rung (exit 3).
    """
    check_said(rung, "trl")
    config, data = rung.config, data_of(rung.config)
    # The loss of the model, where the rung has it and SFTTrainer another one.
    plain = config.objective == "default" and config.loss != "chunked"
    lora = Part() if config.method == "full" else models.lora_config(config)
    trainer = {
        "model": "model",
        **data.arguments,
        "args": "training",
        "train_dataset": data.dataset,
        "processing_class": "tokenizer",
        **({"peft_config": lora.body} if lora.body else {}),
    }
    made = call(f"trainer = {'ModelLoss' if plain else data.kind}Trainer", trainer, indent=4)
    casts = _casts(config)
    parts = [
        data.reads,
        arguments_part(rung, f"{data.kind}Config", training_arguments(rung, trl=True), "trl"),
        function("model_loss") if plain else Part(),
        models.tokenizer(rung),
        models.loading(rung),
        models.float8(config),
        models.liger(config),
        models.frozen(config),
        models.part_checkpointing(config),
        models.kbit_preparation(config),
        lora._replace(body=made),
        Part(names=(f"trl:{data.kind}Trainer", "datasets:Dataset")),
        data.checks,
        Part(_WHY_CAST if casts and by_bitsandbytes(config) else ""),
        *casts,
        models.transformer_engine(config),
        lines("train"),
    ]
    return script(rung, f"TRL's {data.kind}Trainer", parts, launch(rung), data.notes)


def _casts(config: TrainConfig) -> list[Part]:
    """What brings adapters, and what is trained beside them, from TRL's types to the rung's.

    TRL casts both to bfloat16 where the model is quantized, and nothing elsewhere.
    """
    by_trl = "bfloat16" if by_bitsandbytes(config) else None
    if config.method == "full" or config.adapter_dtype == by_trl:
        return []
    if config.adapter_dtype != "default":
        return [models.cast_trained(config.adapter_dtype, "trainer.model")]
    parts = []
    for part, dtype in (("lora_", kept_dtype(config)), ("modules_to_save", saved_dtype(config))):
        if by_trl not in (None, dtype) and (part == "lora_" or config.modules_to_save):
            parts.append(models.cast_trained(dtype, "trainer.model", part))
    return parts
