"""One published row's training with the libraries of its time: the stock SFTTrainer.

    python training.py ROW.json FOLDER

Prints one line `RESULT {...}` with what the benchmark of the row computes from the Trainer's memory
metrics. What exactness needs: the special tokens that the benchmark adds, and on which device it
resizes for them; reentrant checkpointing, as its default is; shards of the usual size. Rows with
GPTQ or fused kernels run with the plugins of fms-acceleration.
"""

import copy
import json
import os
import sys
from inspect import signature
from pathlib import Path

from accelerated import framework, write_gptq

SHARD_BYTES = {"mixtral": 5e9}
USUAL_SHARD_BYTES = 10e9
# Special tokens that the benchmark's tool adds to the tokenizer of a family (fms-hf-tuning 2.5).
ADDED_TOKENS = {"mistral": 1, "mixtral": 1, "llama": 1}
ADDED_TO_LLAMA_3 = 2
LLAMA_3_WORDS = 128256
STAGES = ("before_init_mem_gpu", "init_mem_gpu", "train_mem_gpu")


def main(row: dict, folder: Path) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    import transformers
    from transformers import AutoConfig

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    facts = copy.deepcopy(row["config"])
    family = facts.pop("model_type")
    for key in ("torch_dtype", "transformers_version"):
        facts.pop(key, None)
    words = facts["vocab_size"]
    added = ADDED_TO_LLAMA_3 if words == LLAMA_3_WORDS else ADDED_TOKENS.get(family, 0)
    if not row["quant"]:
        facts["vocab_size"] += added
    config = AutoConfig.for_model(family, **facts)
    dtype = getattr(torch, row["weights_dtype"])
    plugins = framework(row, folder)
    if row["quant"]:
        model = _quantized(row, config, dtype, folder, plugins)
        if added:  # after loading, so on the GPU
            _resize(model, words, added)
    else:
        model = _plain(config, dtype)
    metrics = _train(row, model, folder, plugins)
    print("RESULT", json.dumps(_result(metrics, torch)), flush=True)


def _plain(config, dtype):
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(
            config, torch_dtype=dtype, attn_implementation="flash_attention_2"
        )


def _quantized(row: dict, config, dtype, folder: Path, plugins):
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    checkpoint = _checkpoint(row, config, dtype, folder)
    options = {"torch_dtype": dtype, "attn_implementation": "flash_attention_2"}
    if plugins is not None:
        return plugins.model_loader(checkpoint, **options)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
    )
    return AutoModelForCausalLM.from_pretrained(
        checkpoint, quantization_config=quantization, **options
    )


def _checkpoint(row: dict, config, dtype, folder: Path) -> str:
    """The folder of the model's checkpoint without data; it is written if it is not there."""
    from transformers import AutoModelForCausalLM

    from oomdoctor.monitor.inside.checkpoint import write_checkpoint

    shape = f"{config.model_type}-{config.hidden_size}-{config.num_hidden_layers}"
    checkpoint = folder / f"{shape}-{row['quant']['type']}"
    shard = SHARD_BYTES.get(config.model_type, USUAL_SHARD_BYTES)
    if not (checkpoint / "config.json").exists():
        checkpoint.mkdir()
        if row["quant"]["type"] == "gptq":
            write_gptq(checkpoint, copy.deepcopy(config))
        else:
            write_checkpoint(checkpoint, copy.deepcopy(config), AutoModelForCausalLM, dtype, shard)
    return str(checkpoint)


def _resize(model, words: int, added: int) -> None:
    model.resize_token_embeddings(words + added)
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        part.weight.data[-added:] = part.weight.data[:-added].mean(dim=0, keepdim=True)


def _train(row: dict, model, folder: Path, plugins) -> dict:
    from peft import LoraConfig, get_peft_model
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=row["micro_batch"],
        gradient_accumulation_steps=1,
        max_steps=3,
        gradient_checkpointing=True,
        optim="adamw_torch",
        weight_decay=0.01,
        warmup_steps=10,
        adam_epsilon=1e-4,
        lr_scheduler_type="linear",
        logging_strategy="steps",
        logging_steps=10,
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        learning_rate=2e-5 if row["method"] == "full" else 2e-4,
        bf16=row["autocast"] == "bfloat16",
        fp16=row["autocast"] == "float16",
        packing=True,
        max_seq_length=row["seq_len"],
        dataset_text_field="output",
        include_tokens_per_second=True,
        skip_memory_metrics=False,
        num_train_epochs=1,
        disable_tqdm=True,
    )
    adapter = None
    if row["method"] != "full":
        adapter = LoraConfig(
            task_type="CAUSAL_LM",
            r=row["lora_r"],
            lora_alpha=row["lora_alpha"],
            lora_dropout=row["lora_dropout"],
            bias="none",
            target_modules=row["lora_targets"],
        )
    if plugins is not None:
        model, (adapter,) = plugins.augmentation(model, arguments, modifiable_args=(adapter,))
    elif row["quant"] and (row["kbit_prepare"] or "").startswith("none"):
        # fms_acceleration_peft: framework_plugin_bnb.py
        for weight in model.parameters():
            weight.requires_grad = False
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
        model, adapter = get_peft_model(model, adapter), None
    older = "processing_class" not in signature(SFTTrainer).parameters  # trl 0.11
    tokenizer = "tokenizer" if older else "processing_class"
    trainer = SFTTrainer(
        model=model,
        train_dataset=_packed(row["seq_len"], 64 * row["micro_batch"]),
        args=arguments,
        peft_config=adapter,
        **{tokenizer: _tokenizer(row["seq_len"])},
    )
    if plugins is not None:
        for callback in plugins.get_callbacks_and_ready_for_train(model, trainer.accelerator):
            trainer.add_callback(callback)
    return trainer.train().metrics


def _tokenizer(length: int):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "<pad>": 1, "</s>": 2}, unk_token="a"))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", model_max_length=length
    )


def _packed(length: int, rows: int):
    """A data set of full rows, as packing makes them."""
    from torch.utils.data import Dataset

    class Packed(Dataset):  # TRL takes it as it is, because it is torch's
        def __len__(self) -> int:
            return rows

        def __getitem__(self, index: int) -> dict:
            return {"input_ids": [5] * length, "labels": [5] * length}

    return Packed()


def _result(metrics: dict, torch) -> dict:
    """The benchmark's way of adding up the phases of the Trainer's memory tracker."""
    so_far, peaks = 0, []
    for stage in STAGES:
        so_far += metrics.get(f"{stage}_alloc_delta", metrics.get(stage, 0))
        peaks.append(so_far + metrics.get(f"{stage}_peaked_delta", 0))
    return {
        "allocated_bytes": max(peaks),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_name": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
