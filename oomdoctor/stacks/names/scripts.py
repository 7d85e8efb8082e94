"""What training scripts in Python say beside the settings of their program.

`reading/script.py` gives these names to what it finds in calls.
"""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.stacks.names.peft import BITS, quant_type, storage, trained_whole, upcast_adapters
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Row, Table, table, words_of
from oomdoctor.stacks.names.techniques import backend_row, fp8_row
from oomdoctor.stacks.names.values import (
    among,
    dtype,
    flag,
    flagged,
    if_on,
    integer,
    number,
    switch,
    targets,
    text_of,
)
from oomdoctor.stacks.partial_config import PartialConfig, only


def _allocator(value: object) -> PartialConfig:
    if "expandable_segments:true" in str(value).replace(" ", "").lower():
        return {"allocator": "expandable_segments"}
    raise NotTakenError("a rung has only expandable_segments")


def _targets(value: object) -> PartialConfig:
    """The modules with adapters; our own scripts find those of attention by a function."""
    return {"lora_targets": "attention"} if value == ["attention"] else targets(value)


def _as_said(key: str) -> Row:
    """A row of our own scripts, whose text is the value of a key."""
    return Row(key, (key,), lambda value: only(key, str(value)))


def _counted(key: str) -> Row:
    """A row of our own scripts, whose number is the value of a key."""
    return Row(key, (key,), lambda value: only(key, integer(value)))


# What scripts of others call the length of a row; TrainingArguments has no such setting.
LENGTH = Table(
    (number("max_seq_length", "sequence_length", "block_size", "model_max_length", "max_length",
            "max_seq_len", "sequence_length", write=lambda _: LEFT_OUT),)
)  # fmt: skip

SCRIPT = LENGTH | table(
    "scripts",
    (
        _as_said("objective"),
        # Unsloth's switch for training without an adapter.
        Row("full_finetuning", ("use_peft",), if_on({"use_peft": False})),
        Row(
            "finetune_vision_layers",
            ("vision",),
            lambda value: {"vision": "trained" if flag(value) else "frozen"},
        ),
        Row("lora_target_modules", ("lora_targets",), _targets, None, ("target_modules",)),
        switch("use_dora", "use_dora", True, False),
        switch("use_rslora", "use_rslora", True, False),
        upcast_adapters("autocast_adapter_dtype"),
        _as_said("adapter_dtype"),
        Row("modules_to_save", ("modules_to_save",), lambda v: trained_whole(v) if v else {}),
        *(replace(row, write=None) for row in BITS),
        Row("bnb_4bit_quant_type", (), quant_type),
        Row("bnb_4bit_use_double_quant", ("double_quant",), flagged("double_quant")),
        Row("bnb_4bit_quant_storage", ("quant_storage",), storage),
        Row("bnb_4bit_compute_dtype", ("bits_compute",), lambda v: {"bits_compute": dtype(v)}),
        _as_said("kbit_prepare"),
        _as_said("checkpoint_part"),
        _counted("frozen_layers"),
        Row(
            "use_gradient_checkpointing",
            ("checkpointing", "checkpoint_offload"),
            among("unsloth checkpointing", "a rung has no checkpointing {!r}"),
        ),
        text_of("revision", "revision"),
        _counted("completion_length"),
        fp8_row("fp8"),
        backend_row("fp8_backend", ("torchao", "te")),
        Row("PYTORCH_CUDA_ALLOC_CONF", ("allocator",), _allocator),
    ),
)

# Names that scripts give to the sizes of a training, in any case.
SIZES = words_of("sizes of scripts")
# Those that the arguments of a trainer may leave to the data.
OUTSIDE_ARGUMENTS = frozenset({"max_length", "completion_length"})
