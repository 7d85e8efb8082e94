"""Recognizes whose settings a file has, by names that only one program uses."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.records.user_training import FormatName
from oomdoctor.stacks.reading.flatten import flat

# Names that only this program has; the first program with one of them is it.
_MARKS: tuple[tuple[FormatName, frozenset[str]], ...] = (
    ("torchtune", frozenset({"model._component_", "optimizer._component_",
                             "tokenizer._component_"})),
    ("axolotl", frozenset({"base_model", "sequence_len", "sample_packing", "micro_batch_size"})),
    ("llama-factory", frozenset({"finetuning_type", "model_class", "dist_config", "cutoff_len",
                                 "template", "stage", "quantization_bit", "pure_bf16"})),
    ("accelerate", frozenset({"compute_environment", "distributed_type", "num_processes",
                              "main_training_function", "num_machines"})),
    ("deepspeed", frozenset({"zero_optimization", "train_micro_batch_size_per_gpu",
                             "train_batch_size", "zero_optimization.stage"})),
    # Scripts of transformers' examples share other names with TRL.
    ("trainer", frozenset({"block_size", "dataset_config_name", "train_file",
                           "validation_file", "max_source_length"})),
    ("trl", frozenset({"lora_r", "lora_target_modules", "use_peft", "max_length", "packing",
                       "dataset_text_field", "padding_free", "assistant_only_loss",
                       "completion_only_loss", "model_init_kwargs", "use_bnb_nested_quant",
                       "dataset_train_split", "dataset_name", "dataset_mixture",
                       "dataset_mixer", "dataset_kwargs", "beta", "max_prompt_length",
                       "num_generations", "max_completion_length", "loss_type",
                       "precompute_ref_log_probs", "chat_template_path"})),
    ("trainer", frozenset({"per_device_train_batch_size", "optim", "gradient_checkpointing",
                           "learning_rate", "output_dir", "num_train_epochs", "bf16", "fp16",
                           "model_name_or_path", "gradient_accumulation_steps", "save_steps",
                           "activation_checkpointing", "warmup_steps", "warmup_ratio"})),
)  # fmt: skip
# Two programs share a name with axolotl: nobody else has two of these.
_AXOLOTL_ALONE = frozenset({"base_model", "sequence_len"})


def recognize(values: Mapping[str, object]) -> FormatName | None:
    """The program of a file; None if no name tells."""
    names = {name for name, _ in flat(values)} | set(values)
    for program, marks in _MARKS:
        if names & marks:
            if program == "axolotl" and not names & _AXOLOTL_ALONE:
                continue
            return program
    return None
