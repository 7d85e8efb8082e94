"""What training scripts in Python say beside the settings of their program.

`reading/script.py` gives these names to what it finds in calls.
"""

from __future__ import annotations

from oomdoctor.stacks.names.peft import bits, quant_type, storage, upcast_adapters
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Row, Table, listed, table
from oomdoctor.stacks.names.techniques import backend_row, fp8_row
from oomdoctor.stacks.names.values import (
    dtype,
    flag,
    integer,
    names_in,
    number,
    switch,
    targets,
    text_of,
)
from oomdoctor.stacks.partial_config import PartialConfig


def _modules(value: object) -> PartialConfig:
    return {"modules_to_save": tuple(names_in(value))} if value else {}


def _smart_checkpointing(value: object) -> PartialConfig:
    """Unsloth's switch; its word for checkpoints in host memory is its name."""
    word = str(value).lower()
    if word not in ("unsloth", "true", "false"):
        raise NotTakenError(f"a rung has no checkpointing {value!r}")
    return {"checkpointing": word != "false", "checkpoint_offload": word == "unsloth"}


def _allocator(value: object) -> PartialConfig:
    if "expandable_segments:true" in str(value).replace(" ", "").lower():
        return {"allocator": "expandable_segments"}
    raise NotTakenError("a rung has only expandable_segments")


def _targets(value: object) -> PartialConfig:
    """The modules with adapters; our own scripts find those of attention by a function."""
    return {"lora_targets": "attention"} if value == ["attention"] else targets(value)


def _whole(value: object) -> PartialConfig:
    """Unsloth's switch for training without an adapter."""
    return {"use_peft": False} if flag(value) else {}


def _vision(value: object) -> PartialConfig:
    return {"vision": "trained" if flag(value) else "frozen"}


# What scripts of others call the length of a row; TrainingArguments has no such setting.
LENGTH = Table(
    (number("max_seq_length", "sequence_length", "block_size", "model_max_length", "max_length",
            "max_seq_len", "sequence_length", write=lambda _: LEFT_OUT),)
)  # fmt: skip

SCRIPT = LENGTH | table(
    "scripts",
    (
        Row("objective", ("objective",), lambda value: {"objective": str(value)}),
        Row("full_finetuning", ("use_peft",), _whole),
        Row("finetune_vision_layers", ("vision",), _vision),
        Row("lora_target_modules", ("lora_targets",), _targets, None, ("target_modules",)),
        switch("use_dora", "use_dora", True, False),
        switch("use_rslora", "use_rslora", True, False),
        upcast_adapters("autocast_adapter_dtype"),
        Row("adapter_dtype", ("adapter_dtype",), lambda v: {"adapter_dtype": str(v)}),
        Row("modules_to_save", ("modules_to_save",), _modules),
        Row("load_in_4bit", ("bits_4",), bits(4)),
        Row("load_in_8bit", ("bits_8",), bits(8)),
        Row("bnb_4bit_quant_type", (), quant_type),
        Row("bnb_4bit_use_double_quant", ("double_quant",), lambda v: {"double_quant": flag(v)}),
        Row("bnb_4bit_quant_storage", ("quant_storage",), storage),
        Row("bnb_4bit_compute_dtype", ("bits_compute",), lambda v: {"bits_compute": dtype(v)}),
        Row("kbit_prepare", ("kbit_prepare",), lambda v: {"kbit_prepare": str(v)}),
        Row("checkpoint_part", ("checkpoint_part",), lambda v: {"checkpoint_part": str(v)}),
        Row("frozen_layers", ("frozen_layers",), lambda v: {"frozen_layers": integer(v)}),
        Row(
            "use_gradient_checkpointing",
            ("checkpointing", "checkpoint_offload"),
            _smart_checkpointing,
        ),
        text_of("revision", "revision"),
        Row(
            "completion_length", ("completion_length",), lambda v: {"completion_length": integer(v)}
        ),
        fp8_row("fp8"),
        backend_row("fp8_backend", ("torchao", "te")),
        Row("PYTORCH_CUDA_ALLOC_CONF", ("allocator",), _allocator),
    ),
)

# Names that scripts give to the sizes of a training, in any case.
SIZES = {
    **dict.fromkeys(("sequence_length", "seq_length", "seq_len", "max_length", "max_seq_length",
                     "block_size"), "max_length"),
    **dict.fromkeys(("micro_batch_size", "micro_batch", "per_device_train_batch_size",
                     "batch_size"), "per_device_train_batch_size"),
    **dict.fromkeys(("accumulation_steps", "gradient_accumulation_steps", "grad_accum_steps",
                     "accum_steps"), "gradient_accumulation_steps"),
    "completion_length": "completion_length",
}  # fmt: skip
# Those that the arguments of a trainer may leave to the data.
OUTSIDE_ARGUMENTS = frozenset({"max_length", "completion_length"})
# Settings that scripts of transformers' examples have, which share others with TRL.
OF_EXAMPLES = listed("block_size dataset_config_name train_file validation_file max_source_length")
