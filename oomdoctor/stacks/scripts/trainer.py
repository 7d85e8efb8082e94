"""A rung as a script for transformers' Trainer."""

from __future__ import annotations

from oomdoctor.stacks.rung import StackRung
from oomdoctor.stacks.scripts import data, parts
from oomdoctor.stacks.scripts import model as models
from oomdoctor.stacks.scripts.code import call
from oomdoctor.stacks.scripts.model import Part
from oomdoctor.stacks.scripts.said import check_said
from oomdoctor.stacks.scripts.training_arguments import (
    before_arguments,
    engine_imports,
    launch,
    training_arguments,
)

_IMPORTS = ("transformers:TrainingArguments", "transformers:Trainer")
_TRAINER = """trainer = Trainer(
    model=model,
    args=training,
    train_dataset=packed_rows(args.data, tokenizer),
    data_collator=collate,
)"""
_TRAIN = """\
trainer.train()
trainer.save_model()
tokenizer.save_pretrained(args.output)"""


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: the Trainer cannot express the rung (exit 3).
    """
    check_said(rung, "trainer")
    config = rung.config
    training = call("training = TrainingArguments", training_arguments(rung), indent=4)
    found = [
        Part(before_arguments(config)),
        # It connects the GPUs and tells from_pretrained how to load for them, so it comes first.
        Part(
            training,
            ("transformers:TrainingArguments", "transformers:Trainer", *engine_imports(config)),
        ),
        models.tokenizer(rung),
        models.loading(rung),
        models.adapter(config),
        models.float8(config),
        models.part_checkpointing(config),
    ]
    engine = models.transformer_engine(config)
    names = [
        *parts.ARGUMENT_IMPORTS,
        *data.TEXT.names,
        *parts.COLLATE_IMPORTS,
        *(name for part in (*found, engine) for name in part.names),
    ]
    return parts.script(
        rung,
        "transformers' Trainer",
        names,
        [
            parts.arguments(rung),
            *data.TEXT.functions,
            parts.COLLATE,
            *(function for part in found for function in part.functions),
            parts.main(
                [
                    "args = parse_arguments()",
                    *(part.body for part in found),
                    _TRAINER,
                    engine.body,
                    _TRAIN,
                ]
            ),
        ],
        launch(rung),
    )
