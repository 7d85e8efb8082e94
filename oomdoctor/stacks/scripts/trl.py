"""A rung as a script for TRL: SFTTrainer, or the trainer of the rung's objective."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.rung.adapters import kept_dtype, saved_dtype
from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.scripts import data, parts
from oomdoctor.stacks.scripts import model as models
from oomdoctor.stacks.scripts.code import call
from oomdoctor.stacks.scripts.model import Part
from oomdoctor.stacks.scripts.objectives import dataset_of, objective_of
from oomdoctor.stacks.scripts.said import check_said
from oomdoctor.stacks.scripts.training_arguments import (
    before_arguments,
    engine_imports,
    launch,
    training_arguments,
)

_WHY_CAST = "# TRL casts what is trained of a quantized model to bfloat16. The rung does not."
_MODEL_LOSS = '''
class ModelLossTrainer(SFTTrainer):
    """SFTTrainer with the loss of the model, which the rung was measured with.

    That of SFTTrainer never holds the logits of all tokens at once, so its peak is another.
    """

    def compute_loss(self, *args, **kwargs):
        return Trainer.compute_loss(self, *args, **kwargs)
'''


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: TRL cannot express the rung (exit 3).
    """
    check_said(rung, "trl")
    config = rung.config
    objective, source = objective_of(config), data.data_of(config)
    kind = objective.kind
    settings = training_arguments(rung, trl=True)
    training = call(f"training = {kind}Config", settings, indent=4)
    names = (f"trl:{kind}Config", f"trl:{kind}Trainer", "datasets:Dataset")
    # The loss of the model, where the rung has it and SFTTrainer another one.
    plain = config.objective == "default" and config.loss != "chunked"
    found = [
        Part(objective.reads, names, objective.functions),
        # It connects the GPUs and tells from_pretrained how to load for them, so it comes first.
        Part(before_arguments(config)),
        Part(training, engine_imports(config)),
        Part("", ("transformers:Trainer",), (_MODEL_LOSS,)) if plain else Part(),
        models.tokenizer(rung),
        models.loading(rung),
        models.float8(config),
        models.liger(config),
        models.frozen(config),
        models.part_checkpointing(config),
        models.kbit_preparation(config),
    ]
    trainer = {
        "model": "model",
        **objective.arguments,
        "args": "training",
        "train_dataset": dataset_of(config),
        "processing_class": "tokenizer",
    }
    if config.method != "full":
        lora = models.lora_config(config)
        trainer["peft_config"] = lora.body
        found.append(Part("", lora.names, lora.functions))
    casts = _casts(config)
    found += [Part("", cast.names, cast.functions) for cast in casts[:1]]
    engine = models.transformer_engine(config)
    made = "trainer = ModelLossTrainer" if plain else f"trainer = {kind}Trainer"
    lines = [
        "args = parse_arguments()",
        *(part.body for part in found),
        call(made, trainer, indent=4),
        objective.checks,
        _WHY_CAST if casts and config.quantization != "none" else "",
        *(cast.body for cast in casts),
        engine.body,
        "trainer.train()",
        "trainer.save_model()",
        "tokenizer.save_pretrained(args.output)",
    ]
    return parts.script(
        rung,
        f"TRL's {kind}Trainer",
        [
            *parts.ARGUMENT_IMPORTS,
            *source.names,
            *(name for part in (*found, engine) for name in part.names),
        ],
        [
            parts.arguments(rung),
            *source.functions,
            *(function for part in found for function in part.functions),
            parts.main(lines),
        ],
        launch(rung),
        objective.notes,
    )


def _casts(config: TrainConfig) -> list[Part]:
    """What brings adapters, and what is trained beside them, from TRL's types to the rung's.

    TRL casts both to bfloat16 where the model is quantized, and nothing elsewhere.
    """
    by_trl = "bfloat16" if config.quantization != "none" else None
    if config.method == "full" or config.adapter_dtype == by_trl:
        return []
    if config.adapter_dtype != "default":
        return [models.cast_trained(config.adapter_dtype, "trainer.model")]
    found = []
    for part, dtype in (("lora_", kept_dtype(config)), ("modules_to_save", saved_dtype(config))):
        if by_trl not in (None, dtype) and (part == "lora_" or config.modules_to_save):
            found.append(models.cast_trained(dtype, "trainer.model", part))
    return found
