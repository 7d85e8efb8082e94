"""The rows of frames that save, load or move data; the names are those of `phase_table`."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.analysis.frames import own_names
from oomdoctor.records.diagnosis import ReadPhase


@dataclass(frozen=True, slots=True)
class Row:
    """A phase, and what the file, the function and the quoted source must look like.

    `weak`: the name alone does not tell, so it counts only outside of any forward pass.
    """

    phase: ReadPhase
    file: str = ""
    function: str = ""
    code: str = ""
    weak: bool = False


FILES_AND_DATA: tuple[Row, ...] = (
    # --- saving and loading
    Row("save", file=r"torch/serialization\.py", function=r"_?(?:legacy_)?save|__exit__"),
    Row("save", file=r"safetensors/torch\.py", function=r"save\w*|_flatten|_tobytes"),
    Row(
        "save",
        function=r"_?save(?:_\w+)?|dump_checkpoint|_atomic_save|push_to_hub|_zero3_consolidated_16bit_state_dict",
    ),
    Row("save", function=own_names.SAVING),
    Row("save", file=r"transformers/.*callback", function=r"on_save"),
    Row(
        "save",
        file=r"accelerate/(?:accelerator|utils/fsdp_utils)\.py",
        function=r"get_state_dict|save_fsdp_\w+",
    ),
    Row("save", function=r"clone_tensors_for_torch_save|gather_16bit_weights"),
    Row("data", function=own_names.DATA),
    Row("load", file=r"torch/serialization\.py", function=r"_?(?:legacy_)?load\w*|persistent_load"),
    Row("load", file=r"torch/_utils\.py", function=r"_rebuild\w*"),
    Row("load", file=r"safetensors/torch\.py", function=r"load\w*"),
    Row("load", file=r"transformers/(?:core_model_loading|quantizers/)"),
    Row(
        "load",
        file=r"transformers/integrations/(?:bitsandbytes|mxfp4|finegrained_fp8|tensor_parallel"
        r"|gguf|ggml|accelerate)",
        function=r"(?!forward).*",
    ),
    Row(
        "load",
        file=r"accelerate/(?:utils/modeling|big_modeling|utils/bnb)\.py",
        function=r"(?!attach).*",
    ),
    Row(
        "load",
        function=r"_?from_pretrained\w*|_load_\w+|load_(?:model|weights|checkpoint|state|state_dict"
        r"|pretrained\w*|adapter|sharded\w*|lora\w*|tokenizer_and_model|quantized\w*|hf_\w+)\w*"
        r"|caching_allocator_warmup|dispatch_model|infer_framework_load_model"
        r"|prepare_model_for_(?:kbit|int8)_training|create_quantized_param|set_\w*state_dict"
        r"|resize_token_embeddings|materialize\w*|_materialize\w*",
    ),
    Row("load", file=r"bitsandbytes/nn/modules\.py", function=r"to|cuda|_quantize|cpu|xpu"),
    Row(
        "load",
        file=r"torch/nn/modules/module\.py",
        function=r"(?:Module\.)?(?:to|cuda|half|float|bfloat16|double|_apply|type|to_empty"
        r"|load_state_dict)(?:\.<locals>\.\w+)?|convert|<lambda>|load",
    ),
    Row("load", file=r"transformers/modeling_utils\.py", function=r"to|cuda|half|float"),
    Row("load", function=r"_move_model_to_device|model_to_device|_configure_distributed_model"),
    # --- data
    Row(
        "data",
        file=r"torch/utils/data/|/data/data_collator\.py|datasets/(?:arrow|iterable|formatt)",
    ),
    Row("data", file=r"accelerate/data_loader\.py"),
    Row(
        "data", file=r"accelerate/utils/operations\.py", function=r"send_to_device|_send_to_device"
    ),
    Row(
        "data", function=r"_prepare_inputs?|send_to_device|transfer_batch_to_device|collate(?:_fn)?"
    ),
    Row("data", function=r"batch_to_device|move_data_to_device|pin_memory"),
    Row("data", file=r"tokenization_\w+\.py|transformers/(?:models/.*/)?(?:image_)?processing_"),
    Row("data", function=r"get_batch_samples|_get_num_items_in_batch"),
)
